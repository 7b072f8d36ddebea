"""Softleak in Flower: a guard for the client and a monitor for the server.

This package needs the extra ``flower``: ``pip install '.[flower]'`` in a checkout of softleak.
"""

from softleak.core.errors import MissingExtra, how_to_install

try:
    import flwr.app
    import flwr.serverapp.strategy  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"softleak.guard.flower needs Flower: {how_to_install('flower')} (Python 3.11 or later)"
    ) from error

from softleak.guard.auditor import ClientAudit, Question, RoundAudit
from softleak.guard.flower.guard import LeakageGuard
from softleak.guard.flower.monitor import AuditEngine, LeakageMonitor, Unfit
from softleak.guard.guard import Action, Promise

__all__ = [
    "Action",
    "AuditEngine",
    "ClientAudit",
    "LeakageGuard",
    "LeakageMonitor",
    "Promise",
    "Question",
    "RoundAudit",
    "Unfit",
]
