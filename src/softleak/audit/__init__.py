"""Turn shares into verdicts, by the strongest method that applies to each."""

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
from softleak.audit.options import Options
from softleak.audit.report import Audit, AuditReport, Provenance, Refusal
from softleak.audit.run import NamedShare, audit, audit_shares, prepared
from softleak.audit.truth import Truth
from softleak.core.vocabulary import Leak, State, UpdateKind

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
