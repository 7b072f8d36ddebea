"""Audits through the command line, for the tests beside this file."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from softleak.cli import app


class Small(nn.Module):
    """A chain that takes (2, 6, 6); its weights are drawn anew every time it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 36, 24)
        self.head = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.first(x)).flatten(1)
        return self.head(torch.sigmoid(self.hidden(x)))


class Wrapped(nn.Module):
    """The same behind another name, as projects wrap their networks."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Small()

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x)


SMALL, WRAPPED = (f"{__name__}:{kind.__name__}" for kind in (Small, Wrapped))
SHAPE = ("--input-shape", "2,6,6")


def run(*arguments: object) -> Any:
    """``softleak audit`` with these arguments."""
    texts = ["audit", *map(str, arguments)]
    return CliRunner().invoke(app, texts, env={"COLUMNS": "200"})


def audited(out: object, *arguments: object, code: int = 0) -> dict[str, Any]:
    """The JSON of an audit that ends with this exit code."""
    done = run(*arguments, "--json", "--out", out)
    assert done.exit_code == code, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def only(answer: dict[str, Any]) -> dict[str, Any]:
    """The report of the one share audited."""
    (report,) = answer["reports"]
    return report


def stepped(model: nn.Module, gradients: dict[str, Tensor], lr: float) -> dict[str, Tensor]:
    """The state of a model after a step of SGD in float64, which leaves little rounding."""
    state = {n: t.double() if t.is_floating_point() else t for n, t in model.state_dict().items()}
    return {n: t - lr * gradients[n].double() if n in gradients else t for n, t in state.items()}
