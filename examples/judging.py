"""What an audit says of a client, compared with the truth, which no attack sees."""

from __future__ import annotations

from softleak.guard.auditor import ClientAudit


def exact(client: ClientAudit, true: int) -> bool:
    """Return whether the label was called unique and is the true one, which is one-hot here."""
    recovery = client.report.label.recovery if client.report else None
    if recovery is None or recovery.label is None or recovery.status.name != "UNIQUE":
        return False
    return float(recovery.label[true]) > 0.99


def guess(client: ClientAudit) -> int | None:
    """Return the class that the audit names, with or without proof."""
    return client.report.label.recovery.class_index if client.report else None
