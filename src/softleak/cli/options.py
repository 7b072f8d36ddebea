"""The options of ``softleak audit``: what each is called and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from softleak.audit import Leak

FROM, KNOWN, TO = "What to audit", "What you know of it", "What to do with the answer"

Model = Annotated[
    str | None,
    Option(
        metavar="NAME|MODULE:FACTORY", rich_help_panel=FROM,
        help="The model: a name from `softleak models`, or your own function that makes it.",
    ),
]  # fmt: skip
Weights = Annotated[
    Path | None,
    Option(metavar="FILE", rich_help_panel=FROM, help="Its weights: .safetensors, .pt, .npz."),
]
Share = Annotated[
    Path | None,
    Option(
        metavar="FILE|FOLDER", rich_help_panel=FROM,
        help="The update: gradients by parameter name; or a folder of them.",
    ),
]  # fmt: skip
Before = Annotated[
    Path | None,
    Option(
        metavar="FILE", rich_help_panel=FROM,
        help="Instead of --share: the weights before one step of SGD…",
    ),
]  # fmt: skip
After = Annotated[Path | None, Option(metavar="FILE", rich_help_panel=FROM, help="…after it…")]
Rate = Annotated[
    float | None, Option(metavar="RATE", rich_help_panel=FROM, help="…and its learning rate.")
]
Each = Annotated[
    int,
    Option(
        min=1, max=50, rich_help_panel=FROM,
        help="Of the embedded sample: shares of each kind of label.",
    ),
]  # fmt: skip
Seed = Annotated[
    int,
    Option(
        min=0, rich_help_panel=FROM,
        help="Of the embedded sample: which images and labels are drawn.",
    ),
]  # fmt: skip
InputShape = Annotated[
    str | None,
    Option(
        metavar="C,H,W", rich_help_panel=KNOWN,
        help="The shape of one input, if neither model nor share says.",
    ),
]  # fmt: skip
Classes = Annotated[
    str | None,
    Option(
        metavar="FILE|NUMBER", rich_help_panel=KNOWN,
        help="The names of the classes, one a line, or how many there are.",
    ),
]  # fmt: skip
Normalise = Annotated[
    str | None,
    Option(
        metavar="MEAN/STD", rich_help_panel=KNOWN,
        help="How pixels were normalised: 0.5,0.5,0.5/0.2,0.2,0.2, or cifar10, or imagenet.",
    ),
]  # fmt: skip
UnknownScale = Annotated[
    bool,
    Option(
        "--unknown-scale", rich_help_panel=KNOWN,
        help="The update may have been multiplied by any factor: clipped, averaged, another rate.",
    ),
]  # fmt: skip
Noise = Annotated[
    float,
    Option(
        min=0, metavar="STD", rich_help_panel=KNOWN,
        help="The standard deviation of noise the update is known to carry.",
    ),
]  # fmt: skip
TrainMode = Annotated[
    bool,
    Option(
        "--train-mode", rich_help_panel=KNOWN,
        help="The client computed in train mode (BatchNorm, dropout).",
    ),
]  # fmt: skip
TruthFile = Annotated[
    Path | None,
    Option(
        "--truth", metavar="FILE|FOLDER", rich_help_panel=KNOWN,
        help="Tensors named label and input, read after the answer, only to score it.",
    ),
]  # fmt: skip
LabelsOnly = Annotated[
    bool,
    Option(
        "--labels-only", rich_help_panel=TO,
        help="Do not recover inputs: thousands of shares in seconds.",
    ),
]  # fmt: skip
MatchSeconds = Annotated[
    float,
    Option(
        min=0, metavar="SECONDS", rich_help_panel=TO,
        help="Of gradient matching, a share, where a model cannot be inverted; 0 leaves it out.",
    ),
]  # fmt: skip
WhatIf = Annotated[
    bool,
    Option(
        "--what-if", rich_help_panel=TO,
        help="Try defences on up to four shares and say where each attack ends; takes minutes.",
    ),
]  # fmt: skip
Seeds = Annotated[
    int, Option(min=1, max=100, rich_help_panel=TO, help="Of --what-if: seeds of random defences.")
]
Out = Annotated[
    Path, Option(metavar="DIR", rich_help_panel=TO, help="Where index.html and audit.json go.")
]
Json = Annotated[
    bool,
    Option("--json", rich_help_panel=TO, help="Print the answer as JSON instead of a table."),
]
FailOn = Annotated[
    list[Leak] | None,
    Option(
        rich_help_panel=TO,
        help="Exit with 3 if this leaks from any share, with 4 if it could not be attacked; may be "
        "given several times.",
    ),
]  # fmt: skip
