"""softleak: what a shared gradient gives away, soft labels included.

The public names are imported when they are first used, so that ``import softleak`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from softleak import page_writer
from softleak._version import __version__
from softleak.errors import SoftleakError

if TYPE_CHECKING:
    from softleak.auditing import AuditReport, audit
    from softleak.batches.recover_batch import recover_batch
    from softleak.client import Client, capture
    from softleak.families import AnyLabel, Family, Mixed, OneHot, Smoothed, SmoothedMixed
    from softleak.head import Head
    from softleak.input_spec import InputPart, InputSpec
    from softleak.inversion.chain import Chain
    from softleak.inversion.choose import invert
    from softleak.inversion.walk import Inversion
    from softleak.knowledge import Knowledge
    from softleak.labels.evidence.probes import probe
    from softleak.labels.recover import recover_label, recover_labels
    from softleak.matching import L2, Cosine, Reconstruction
    from softleak.matching.reconstruct import reconstruct, reconstruct_many
    from softleak.results import BatchRecovery, Candidate, Evidence, Recovery, Status
    from softleak.share import GradientShare
    from softleak.subject import Subject

__all__ = [
    "L2",
    "AnyLabel",
    "AuditReport",
    "BatchRecovery",
    "Candidate",
    "Chain",
    "Client",
    "Cosine",
    "Evidence",
    "Family",
    "GradientShare",
    "Head",
    "InputPart",
    "InputSpec",
    "Inversion",
    "Knowledge",
    "Mixed",
    "OneHot",
    "Reconstruction",
    "Recovery",
    "Smoothed",
    "SmoothedMixed",
    "SoftleakError",
    "Status",
    "Subject",
    "__version__",
    "audit",
    "capture",
    "invert",
    "probe",
    "reconstruct",
    "reconstruct_many",
    "recover_batch",
    "recover_label",
    "recover_labels",
]

_NAMES_BY_MODULE = {
    "auditing": ("AuditReport", "audit"),
    "batches.recover_batch": ("recover_batch",),
    "client": ("Client", "capture"),
    "families": ("AnyLabel", "Family", "Mixed", "OneHot", "Smoothed", "SmoothedMixed"),
    "head": ("Head",),
    "input_spec": ("InputPart", "InputSpec"),
    "inversion.chain": ("Chain",),
    "inversion.choose": ("invert",),
    "inversion.walk": ("Inversion",),
    "knowledge": ("Knowledge",),
    "labels.evidence.probes": ("probe",),
    "labels.recover": ("recover_label", "recover_labels"),
    "matching": ("L2", "Cosine", "Reconstruction"),
    "matching.reconstruct": ("reconstruct", "reconstruct_many"),
    "results": ("BatchRecovery", "Candidate", "Evidence", "Recovery", "Status"),
    "share": ("GradientShare",),
    "subject": ("Subject",),
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


def _write_page(path: str | PathLike[str], audit: Any) -> None:  # noqa: ANN401 - an Audit
    from softleak.report import write_page

    write_page(path, audit)


page_writer.provide(_write_page)
