"""softleak: what a shared gradient gives away, soft labels included."""

from softleak._version import __version__
from softleak.audit import AuditReport, audit
from softleak.capture import capture
from softleak.errors import SoftleakError
from softleak.head import Head
from softleak.inversion.chain import Chain
from softleak.inversion.walk import Inversion, invert
from softleak.labels.evidence.probes import probe
from softleak.labels.families import AnyLabel, Family, Mixed, OneHot, Smoothed, SmoothedMixed
from softleak.labels.recover import recover_label, recover_labels
from softleak.matching import L2, Cosine, Reconstruction, reconstruct
from softleak.results import Candidate, Evidence, Recovery, Status
from softleak.share import GradientShare

__all__ = [
    "L2",
    "AnyLabel",
    "AuditReport",
    "Candidate",
    "Chain",
    "Cosine",
    "Evidence",
    "Family",
    "GradientShare",
    "Head",
    "Inversion",
    "Mixed",
    "OneHot",
    "Reconstruction",
    "Recovery",
    "Smoothed",
    "SmoothedMixed",
    "SoftleakError",
    "Status",
    "__version__",
    "audit",
    "capture",
    "invert",
    "probe",
    "reconstruct",
    "recover_label",
    "recover_labels",
]
