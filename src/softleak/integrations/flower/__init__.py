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
from softleak.integrations.flower.guard import LeakageGuard
from softleak.integrations.flower.monitor import LeakageMonitor, Unfit
from softleak.integrations.guarding.auditor import Question
from softleak.integrations.guarding.round_findings import ClientAudit, RoundAudit
from softleak.integrations.guarding.update_guard import Action

__all__ = [
    "Action",
    "AuditEngine",
    "ClientAudit",
    "LeakageGuard",
    "LeakageMonitor",
    "Question",
    "RoundAudit",
    "Unfit",
]
