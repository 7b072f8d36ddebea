"""From updates to findings: what an update gives away, by the strongest method that applies.

``leaks``: the table of kinds of leak. ``findings``, ``samples``, ``composition``: what was found,
as data. ``report``: all of it for one update. ``input_attacks``, ``several_inputs``: the attacks on
inputs. ``run``: one audit from beginning to end. ``files``: update files. ``truth``, ``metrics``:
scores, read after the answer. ``defended``, ``sweeps``, ``whatif``, ``weakest``: what would stop an
attack. The names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softleak.audit.composition import CompositionFinding, Counts
    from softleak.audit.files import UpdateReading
    from softleak.audit.findings import (
        FeatureFinding,
        InputFinding,
        LabelFinding,
        LabelLeak,
        Method,
        Score,
    )
    from softleak.audit.leaks import Leak
    from softleak.audit.options import Options
    from softleak.audit.report import Audit, AuditReport, Provenance, Refusal
    from softleak.audit.run import NamedShare, audit, audit_shares, prepared
    from softleak.audit.truth import Truth
    from softleak.core.vocabulary import State, UpdateKind

__all__ = [
    "Audit",
    "AuditReport",
    "CompositionFinding",
    "Counts",
    "FeatureFinding",
    "InputFinding",
    "LabelFinding",
    "LabelLeak",
    "Leak",
    "Method",
    "NamedShare",
    "Options",
    "Provenance",
    "Refusal",
    "Score",
    "State",
    "Truth",
    "UpdateKind",
    "UpdateReading",
    "audit",
    "audit_shares",
    "prepared",
]

_NAMES_BY_MODULE = {
    "audit.composition": (
        "CompositionFinding",
        "Counts",
    ),
    "audit.files": ("UpdateReading",),
    "audit.findings": (
        "FeatureFinding",
        "InputFinding",
        "LabelFinding",
        "LabelLeak",
        "Method",
        "Score",
    ),
    "audit.options": ("Options",),
    "audit.report": (
        "Audit",
        "AuditReport",
        "Provenance",
        "Refusal",
    ),
    "audit.run": (
        "NamedShare",
        "audit",
        "audit_shares",
        "prepared",
    ),
    "audit.truth": ("Truth",),
    "audit.leaks": ("Leak",),
    "core.vocabulary": (
        "State",
        "UpdateKind",
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softleak.{_MODULE_OF[name]}"), name)
