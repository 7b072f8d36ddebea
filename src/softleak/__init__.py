"""softleak: what a shared gradient gives away, soft labels included.

The public names are imported when they are first used, so that ``import softleak`` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from softleak._moved import MovedPaths
from softleak._version import __version__
from softleak.core.errors import SoftleakError

if TYPE_CHECKING:
    from softleak.audit.report import AuditReport
    from softleak.audit.run import audit
    from softleak.batches.recover import recover_batch
    from softleak.bounds.claims import ClaimCheck, check_claim
    from softleak.bounds.hidden import HiddenProof, prove_hidden
    from softleak.core.client import Client, capture
    from softleak.core.families import AnyLabel, Family, Mixed, OneHot, Smoothed, SmoothedMixed
    from softleak.core.fit import Fit
    from softleak.core.head import Head
    from softleak.core.input_spec import InputPart, InputSpec
    from softleak.core.knowledge import Knowledge
    from softleak.core.results import BatchRecovery, Candidate, Evidence, Recovery, Status
    from softleak.core.share import GradientShare
    from softleak.core.subject import Subject
    from softleak.inversion.chain import Chain
    from softleak.inversion.invert import invert
    from softleak.inversion.results import Inversion
    from softleak.labels.evidence.probes import probe
    from softleak.labels.recover import recover_label, recover_labels
    from softleak.matching.choose import reconstruct
    from softleak.matching.problems import L2, Cosine
    from softleak.matching.reconstruct import reconstruct_many
    from softleak.matching.reconstruction import Reconstruction

__all__ = [
    "L2", "AnyLabel", "AuditReport", "BatchRecovery", "Candidate", "Chain", "ClaimCheck", "Client",
    "Cosine", "Evidence", "Family", "Fit", "GradientShare", "Head", "HiddenProof", "InputPart",
    "InputSpec", "Inversion", "Knowledge", "Mixed", "OneHot", "PrivacyClaim", "Reconstruction",
    "Recovery", "Smoothed", "SmoothedMixed", "SoftleakError", "Status", "Subject", "__version__",
    "audit", "capture", "check_claim", "invert", "probe", "prove_hidden", "reconstruct",
    "reconstruct_many", "recover_batch", "recover_label", "recover_labels",
]  # fmt: skip

_NAMES_BY_MODULE = {
    "audit.report": ("AuditReport",),
    "audit.run": ("audit",),
    "batches.recover": ("recover_batch",),
    "bounds.claims": ("ClaimCheck", "check_claim"),
    "bounds.mechanisms": ("PrivacyClaim",),
    "bounds.hidden": ("HiddenProof", "prove_hidden"),
    "core.client": ("Client", "capture"),
    "core.families": ("AnyLabel", "Family", "Mixed", "OneHot", "Smoothed", "SmoothedMixed"),
    "core.fit": ("Fit",),
    "core.head": ("Head",),
    "core.input_spec": ("InputPart", "InputSpec"),
    "inversion.chain": ("Chain",),
    "inversion.invert": ("invert",),
    "inversion.results": ("Inversion",),
    "core.knowledge": ("Knowledge",),
    "labels.evidence.probes": ("probe",),
    "labels.recover": ("recover_label", "recover_labels"),
    "matching": ("L2", "Cosine", "Reconstruction"),
    "matching.choose": ("reconstruct",),
    "matching.reconstruct": ("reconstruct_many",),
    "core.results": ("BatchRecovery", "Candidate", "Evidence", "Recovery", "Status"),
    "core.share": ("GradientShare",),
    "core.subject": ("Subject",),
}
_PACKAGES = ("auditing", "data", "defenses", "matching", "metrics", "models", "report")
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a public name when it is first used, and keep it."""
    if name in _PACKAGES:
        return import_module(f"softleak.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'softleak' has no attribute {name!r}")
    value = getattr(import_module(f"softleak.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names whether or not they were used."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package as a module whose ``audit`` is the function, though a folder has that name."""

    @property
    def audit(self) -> Any:  # noqa: ANN401 - the function, imported when it is first used
        """Return the function ``softleak.audit``."""
        return import_module("softleak.audit.run").audit

    @audit.setter
    def audit(self, folder: ModuleType) -> None:
        """Leave the name to the function, when the import of the folder would bind it."""


sys.modules[__name__].__class__ = _Package
sys.meta_path.append(MovedPaths)
