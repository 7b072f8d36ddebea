"""This package holds softleak in Flower: a guard for the client and a monitor for the server.

This package needs the extra ``flower``: ``pip install 'softleak[flower]'``.
"""

from softleak.errors import MissingExtra

try:
    import flwr.app
    import flwr.serverapp.strategy  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        "softleak.integrations.flower needs Flower: pip install 'softleak[flower]' "
        "(Python 3.11 or later)"
    ) from error

from softleak.integrations.flower.audit_engine import AuditEngine
from softleak.integrations.flower.auditor import Question
from softleak.integrations.flower.guard import Action, LeakageGuard
from softleak.integrations.flower.monitor import LeakageMonitor, Unfit
from softleak.integrations.flower.own_batch import BatchPreview
from softleak.integrations.flower.round_findings import ClientAudit, RoundAudit

__all__ = [
    "Action",
    "AuditEngine",
    "BatchPreview",
    "ClientAudit",
    "LeakageGuard",
    "LeakageMonitor",
    "Question",
    "RoundAudit",
    "Unfit",
]
