"""From shares to verdicts: the strongest method that applies, and what it proves."""

from softleak.audit.composition import CompositionFinding, Counts
from softleak.audit.findings import (
    FeatureFinding,
    InputFinding,
    LabelFinding,
    LabelLeak,
    Method,
    Score,
)
from softleak.audit.rates import Leak, State
from softleak.audit.reading import Kind, Reading
from softleak.audit.reports import Audit, AuditReport, Provenance, Refusal
from softleak.audit.run import NamedShare, Options, audit, audit_shares, prepared
from softleak.audit.subject import Subject
from softleak.audit.truth import Truth

__all__ = [
    "Audit",
    "AuditReport",
    "CompositionFinding",
    "Counts",
    "FeatureFinding",
    "InputFinding",
    "Kind",
    "LabelFinding",
    "LabelLeak",
    "Leak",
    "Method",
    "NamedShare",
    "Options",
    "Provenance",
    "Reading",
    "Refusal",
    "Score",
    "State",
    "Subject",
    "Truth",
    "audit",
    "audit_shares",
    "prepared",
]
