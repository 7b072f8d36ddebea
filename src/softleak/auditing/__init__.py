"""This package turns shares into verdicts, by the strongest method that applies to each."""

from softleak.auditing.audit_options import Options
from softleak.auditing.audit_run import NamedShare, audit, audit_shares, prepared
from softleak.auditing.composition import CompositionFinding, Counts
from softleak.auditing.findings import (
    FeatureFinding,
    InputFinding,
    LabelFinding,
    LabelLeak,
    Method,
    Score,
)
from softleak.auditing.reading import UpdateReading
from softleak.auditing.reports import Audit, AuditReport, Provenance, Refusal
from softleak.auditing.truth import Truth
from softleak.vocabulary import Leak, State, UpdateKind

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
