"""Old paths of packages: each goes on importing, warns, and holds what its new path holds."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "softleak.auditing": "softleak.audit",
    "softleak.data": "softleak.paper.data",
    "softleak.integrations.flower": "softleak.guard.flower",
    "softleak.integrations.nvflare": "softleak.guard.nvflare",
    "softleak.metrics": "softleak.audit.metrics",
    "softleak.models": "softleak.paper.models",
    "softleak.report": "softleak.present",
}


class MovedPaths:
    """A finder on ``sys.meta_path`` of modules that are no files any more."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how an old path is imported; None for every other."""
        return ModuleSpec(name, MovedPaths()) if name in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill an old path with the public names of the new one, and warn."""
        old, new = module.__name__, MOVED[module.__name__]
        there = import_module(new)
        module.__dict__.update({name: getattr(there, name) for name in there.__all__})
        warnings.warn(f"{old} has moved: import {new} instead", DeprecationWarning, stacklevel=2)
