"""Pictures of what the server can see of one client's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from softleak.auditing.findings import Method
from softleak.auditing.wording import class_name
from softleak.integrations.guarding.round_findings import ClientAudit
from softleak.report import png


@dataclass(frozen=True)
class Picture:
    """One client's input as the server can see it.

    Attributes:
        name: the round and the node.
        label: the name of the class, or that none is claimed.
        words: how well the input was recovered.
        found: the recovered image as a data URI; None if there is none.
        true: the true image as a data URI; None if it is not known.
    """

    name: str
    label: str
    words: str
    found: str | None
    true: str | None = None


def picture(
    number: int, client: ClientAudit, names: Sequence[str], true: Tensor | None = None
) -> Picture:
    """Return one client's input as the server can see it.

    Args:
        number: the number of the round.
        client: what was found about the client's update.
        names: the names of the classes.
        true: the true pixels (C, H, W), if somebody has them.
    """
    report = client.report
    if report is None:
        return Picture(f"round {number}", "not audited", client.reason, None)
    found, index = report.input.pixels, report.label.class_index
    quality = report.input.psnr_predicted
    return Picture(
        f"round {number}, node {str(client.node)[-4:]}",
        "class not claimed" if index is None else class_name(index, names),
        f"{quality:.0f} dB predicted" if quality is not None and report.input.leaked
        else f"not attacked: {report.input.message}" if report.input.method == Method.NONE
        else "not determined: this attack did not succeed",
        png.picture(found),
        png.picture(true),
    )  # fmt: skip
