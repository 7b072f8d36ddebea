"""From updates to findings: what an update gives away, by the strongest method that applies.

``leaks``: the table of kinds of leak. ``report``: what was found, as data. ``input_attacks``,
``several``: the attacks on inputs, and on updates of several samples or steps. ``run``: one audit
from beginning to end, and update files. ``metrics``: scores, read after the answer. ``sweeps``,
``whatif``, ``weakest``: what would stop an attack. The names below are imported when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softleak.audit.leaks import Leak
    from softleak.audit.metrics import Truth
    from softleak.audit.options import Options
    from softleak.audit.report import (
        Audit,
        AuditReport,
        CompositionFinding,
        Counts,
        FeatureFinding,
        InputFinding,
        LabelFinding,
        Method,
        Provenance,
        Refusal,
        Score,
    )
    from softleak.audit.run import NamedShare, UpdateReading, audit, audit_shares, prepared
    from softleak.core.vocabulary import State, UpdateKind

__all__ = [
    "Audit", "AuditReport", "CompositionFinding", "Counts", "FeatureFinding", "InputFinding",
    "LabelFinding", "Leak", "Method", "NamedShare", "Options", "Provenance", "Refusal",
    "Score", "State", "Truth", "UpdateKind", "UpdateReading", "audit", "audit_shares", "prepared",
]  # fmt: skip

_NAMES_BY_MODULE = {
    "audit.leaks": ("Leak",),
    "audit.metrics": ("Truth",),
    "audit.options": ("Options",),
    "audit.run": ("NamedShare", "UpdateReading", "audit", "audit_shares", "prepared"),
    "core.vocabulary": ("State", "UpdateKind"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softleak.{_MODULE_OF.get(name, 'audit.report')}"), name)
