"""softleak in Flower: a guard on the client, a monitor on the server.

Needs the extra ``flower``: ``pip install 'softleak[flower]'``.
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

from softleak.integrations.flower.auditor import Question
from softleak.integrations.flower.engine import Engine
from softleak.integrations.flower.findings import ClientAudit, RoundAudit
from softleak.integrations.flower.guard import Action, LeakageGuard
from softleak.integrations.flower.monitor import LeakageMonitor, Unfit

__all__ = [
    "Action",
    "ClientAudit",
    "Engine",
    "LeakageGuard",
    "LeakageMonitor",
    "Question",
    "RoundAudit",
    "Unfit",
]
