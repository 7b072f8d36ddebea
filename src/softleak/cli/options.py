"""The options of ``softleak audit``: what each is called and what it means."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Option

from softleak.audit import Kind, Leak
from softleak.share import ROUNDOFF

Precision = Enum("Precision", {name: name for name in ROUNDOFF}, type=str)  # type: ignore[misc]
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
    Option(
        metavar="FILE|FOLDER", rich_help_panel=FROM,
        help="Its weights before the step: a checkpoint, or a Hugging Face folder.",
    ),
]  # fmt: skip
RandomWeights = Annotated[
    bool,
    Option(
        "--random-weights", rich_help_panel=FROM,
        help="Audit against weights drawn at random, and say so; else they are refused.",
    ),
]  # fmt: skip
Share = Annotated[
    Path | None,
    Option(
        metavar="FILE|FOLDER", rich_help_panel=FROM,
        help="The update: gradients by parameter name; or a folder of them.",
    ),
]  # fmt: skip
WhatKind = Annotated[
    Kind | None,
    Option(
        "--kind", rich_help_panel=FROM,
        help="What --share holds: the gradient itself, weights after a step minus those before, or "
        "the weights after it. Unsaid, it is read as a gradient of any sign and scale.",
    ),
]  # fmt: skip
Before = Annotated[
    Path | None,
    Option(
        metavar="FILE", rich_help_panel=FROM,
        help="Instead of --share: the weights before one step of SGD, which are audited…",
    ),
]  # fmt: skip
After = Annotated[Path | None, Option(metavar="FILE", rich_help_panel=FROM, help="…and after it.")]
Rate = Annotated[
    float | None,
    Option(
        metavar="RATE", rich_help_panel=FROM,
        help="The learning rate of that step, or of --kind delta and weights; without it the scale "
        "is unknown.",
    ),
]  # fmt: skip
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
HeadName = Annotated[
    str | None,
    Option(
        "--head", metavar="NAME", rich_help_panel=KNOWN,
        help="The last linear layer, if it is not to be found out.",
    ),
]  # fmt: skip
Samples = Annotated[
    int | None,
    Option(
        min=1, metavar="N", rich_help_panel=KNOWN,
        help="The update is one step on the mean loss of so many samples: its classes are counted.",
    ),
]  # fmt: skip
Format = Annotated[
    Precision | None,
    Option(
        "--precision", rich_help_panel=KNOWN,
        help="The coarsest number format the client computed in, as with autocast.",
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
        help="Of gradient matching, a share, where inversion does not do; 0 leaves it out.",
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
        help="Exit with 3 if this leaks from any share, with 5 if it could not be attacked; may be "
        "given several times.",
    ),
]  # fmt: skip
