"""This package holds softleak in Flower: a guard for the client and a monitor for the server.

This package needs the extra ``flower``: ``pip install '.[flower]'`` in a checkout of softleak.
"""

from softleak.errors import MissingExtra, how_to_install

try:
    import flwr.app
    import flwr.serverapp.strategy  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"softleak.integrations.flower needs Flower: {how_to_install('flower')} "
        "(Python 3.11 or later)"
    ) from error

from softleak.integrations.flower.audit_engine import AuditEngine
from softleak.integrations.flower.guard import LeakageGuard
from softleak.integrations.flower.monitor import LeakageMonitor, Unfit
from softleak.integrations.flower.own_batch import BatchPreview
from softleak.integrations.guarding.auditor import Question
from softleak.integrations.guarding.round_findings import ClientAudit, RoundAudit
from softleak.integrations.guarding.update_guard import Action

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
