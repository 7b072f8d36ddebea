"""From shares to verdicts: the strongest method that applies, and what it proves."""

from softleak.audit.findings import (
    Audit,
    AuditReport,
    FeatureFinding,
    InputFinding,
    LabelFinding,
    LabelLeak,
    Method,
    Provenance,
    Refusal,
    Score,
)
from softleak.audit.rates import Leak
from softleak.audit.run import NamedShare, Options, audit, audit_shares, prepared
from softleak.audit.subject import Subject
from softleak.audit.truth import Truth

__all__ = [
    "Audit",
    "AuditReport",
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
    "Subject",
    "Truth",
    "audit",
    "audit_shares",
    "prepared",
]
