"""What was asked of ``softleak audit``, and which options do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from softleak.audit.leaks import Leak
from softleak.core.errors import OptionError, SoftleakError
from softleak.core.vocabulary import LOSS_NAMES, ROUNDOFF, DefenceGroup, UpdateKind

NumberFormat = Enum("NumberFormat", {name: name for name in ROUNDOFF}, type=str)  # type: ignore[misc]
OutputFormat = Enum("OutputFormat", {n: n for n in ("table", "json", "github")}, type=str)  # type: ignore[misc]
LossName = Enum("LossName", {name: name for name in LOSS_NAMES}, type=str)  # type: ignore[misc]

_subject = partial(Option, rich_help_panel="What to audit")
_known = partial(Option, rich_help_panel="What you know about the update")


def _leak(name: str) -> Leak:
    try:
        return Leak.named(name)
    except OptionError as error:
        raise BadParameter(str(error)) from None


_answer = partial(Option, rich_help_panel="What to do with the answer")


@dataclass(frozen=True)
class AuditOptions:
    """The options of ``softleak audit`` as they were given."""

    model: Annotated[str | None, _subject(metavar="NAME|MODULE:FACTORY")] = None
    """The model: a name listed by `softleak models`, or your own function that returns it."""
    weights: Annotated[Path | None, _subject(metavar="FILE|FOLDER")] = None
    """The model's weights before the step: a checkpoint, or a Hugging Face folder."""
    random_weights: Annotated[bool, _subject("--random-weights")] = False
    """Audit a model with random weights. Without this option such a model is refused, because the
    verdict holds only for the weights the client used."""
    share: Annotated[Path | None, _subject(metavar="FILE|FOLDER")] = None
    """The update a client sent, as tensors by parameter name; or a folder of updates."""
    kind: Annotated[UpdateKind | None, _subject()] = None
    """What --share holds: the gradient itself, the weights after a step minus those before it, or
    the weights after it. Without this option the file is read as a gradient, and other signs and
    scales are considered."""
    before: Annotated[Path | None, _subject(metavar="FILE")] = None
    """Instead of --share: the weights before one step of SGD. Needs --after."""
    after: Annotated[Path | None, _subject(metavar="FILE")] = None
    """The weights after that step. Needs --before."""
    lr: Annotated[float | None, _subject(metavar="RATE")] = None
    """The learning rate of the step, for --before and --after and for --kind delta or weights.
    Without it the scale of the update is unknown."""
    client: Annotated[str | None, _subject(metavar="SETTINGS|FILE")] = None
    """How the client trained, for weights or a difference of them: lr=0.01,steps=5,momentum=0.9, or
    a file of such settings. What is not known is written lr=?. Takes the place of --lr."""
    each: Annotated[int, _subject(min=1, max=50)] = 2
    """Updates per kind of label, when the embedded sample is audited."""
    seed: Annotated[int, _subject(min=0)] = 2
    """Which images and labels are drawn, when the embedded sample is audited."""
    input_shape: Annotated[str | None, _known(metavar="C,H,W")] = None
    """The shape of one input, if neither the model nor the update says it."""
    head: Annotated[str | None, _known(metavar="NAME")] = None
    """The name of the last linear layer, if it cannot be detected."""
    loss: Annotated[LossName | None, _known()] = None
    """What the client minimised: softmax cross-entropy, binary cross-entropy of several labels or
    of one output, the squared error, or the cross-entropy of the next token of a text. Without this
    option the model and the numbers decide between them."""
    samples: Annotated[int | None, _known(min=1, metavar="N")] = None
    """The update is one step on the mean loss of N samples. The samples of each class are then
    counted."""
    precision: Annotated[NumberFormat | None, _known()] = None
    """The coarsest number format the client computed in, as with autocast."""
    classes: Annotated[str | None, _known(metavar="FILE|NUMBER")] = None
    """A file with the names of the classes, one per line; or their number."""
    normalise: Annotated[str | None, _known(metavar="MEAN/STD")] = None
    """How pixels were normalised: 0.5,0.5,0.5/0.2,0.2,0.2, or cifar10, or imagenet."""
    tokenizer: Annotated[Path | None, _known(metavar="FILE|FOLDER")] = None
    """The tokenizer of a text classifier (tokenizer.json, vocab.json or vocab.txt), to show words
    instead of token numbers. Nothing is downloaded."""
    unknown_scale: Annotated[bool, _known("--unknown-scale")] = False
    """The update may have been multiplied by any positive factor, for example by clipping or by a
    learning rate you do not know."""
    noise: Annotated[float, _known(min=0, metavar="STD")] = 0.0
    """The standard deviation of the noise that was added to the update."""
    train_mode: Annotated[bool, _known("--train-mode")] = False
    """The client computed in train mode, which changes BatchNorm and dropout."""
    truth: Annotated[Path | None, _known(metavar="FILE|FOLDER")] = None
    """The true label and input (tensors named `label` and `input`). They are read after the attack,
    to score it and for nothing else."""
    labels_only: Annotated[bool, _answer("--labels-only")] = False
    """Do not attack inputs. Thousands of updates then take seconds."""
    match_seconds: Annotated[float, _answer(min=0, metavar="SECONDS")] = 30.0
    """Seconds of gradient matching per update, for models that cannot be inverted layer by layer; 0
    skips it."""
    what_if: Annotated[bool, _answer("--what-if")] = False
    """Try defences on up to four updates, and say at which setting each attack stops succeeding.
    Takes minutes."""
    seeds: Annotated[int, _answer(min=1, max=100)] = 2
    """Seeds per random defence that --what-if tries."""
    defences: Annotated[list[DefenceGroup] | None, _answer()] = None
    """What --what-if tries: noise, clipping, pruning and coarser numbers (common), DP-SGD with ε on
    the axis, or the filters of NVIDIA FLARE. May be given several times. Without it the common
    ones, and DP-SGD if Opacus is installed."""
    prove_hidden: Annotated[str | None, _answer("--prove-hidden", metavar="SETTINGS")] = None
    """Find the weakest Gaussian noise that is proved to hide the label from every attack, and how
    many clients' mean then keeps a cosine: label=0.2,cosine=0.9. Needs the sample: --truth, or one
    that leaked."""
    dp_sgd: Annotated[str | None, _answer("--dp-sgd", metavar="SETTINGS")] = None
    """The training whose ε is counted: clip=1,rate=0.01,steps=1000,delta=1e-5. Without it ε is that
    of this update alone, clipped to its own norm."""
    out: Annotated[Path, _answer(metavar="DIR")] = Path("softleak-audit")
    """The folder for index.html and audit.json."""
    dossier: Annotated[bool, _answer("--dossier")] = False
    """Also write dossier.html and dossier.json: what was audited, every attack and its outcome,
    defences, residual risk; to be printed and filed."""
    auditor: Annotated[str | None, _answer(metavar="NAME")] = None
    """Who answers for this audit, as the dossier shall say."""
    junit: Annotated[Path | None, _answer(metavar="FILE")] = None
    """Also write the findings as JUnit XML, for a pipeline."""
    sarif: Annotated[Path | None, _answer(metavar="FILE")] = None
    """Also write the findings as SARIF 2.1.0, for code scanning."""
    as_json: Annotated[bool, _answer("--json")] = False
    """Print the answer as JSON instead of a table: short for --format json."""
    format: Annotated[OutputFormat, _answer()] = OutputFormat["table"]
    """What is printed: a table, the whole answer as JSON, or remarks for a GitHub workflow."""
    fail_on: Annotated[
        list[Leak] | None, _answer(parser=_leak, metavar="|".join(leak.value for leak in Leak))
    ] = None
    """Exit with code 3 if this leaks from any update, and with code 5 if it could not be attacked.
    May be given several times."""


@dataclass(frozen=True)
class ClaimOptions:
    """The options of ``softleak claim``."""

    of: Annotated[str | None, Option(metavar="MODULE:NAME")] = None
    """What protects an update, in a module of yours: a mod of Flower, a filter of NVIDIA FLARE, an
    optimiser of Opacus, or a list of them in their order. It is run on steps that are made up."""
    share: Annotated[Path | None, Option(metavar="FILE")] = None
    """Instead of --of: the update that was sent."""
    undefended: Annotated[Path | None, Option(metavar="FILE")] = None
    """The same update before its protection, which shows the noise exactly."""
    said: Annotated[str | None, Option(metavar="SETTINGS")] = None
    """What is claimed beside what the objects say: clip=1,sensitivity=1,noise=4.8,epsilon=1,
    delta=1e-5,rate=0.01,rounds=100, or some of these."""
    as_json: Annotated[bool, Option("--json")] = False
    """Print the answer as JSON instead of a table."""


@dataclass(frozen=True)
class DiffOptions:
    """The options of ``softleak diff``."""

    before: Annotated[Path, Argument(metavar="A.JSON")]
    """The audit.json of the earlier audit."""
    after: Annotated[Path, Argument(metavar="B.JSON")]
    """The audit.json of the later audit."""
    as_json: Annotated[bool, Option("--json")] = False
    """Print the difference as JSON instead of tables."""
    fail_on_worse: Annotated[bool, Option("--fail-on-worse")] = False
    """Exit with code 3 if something leaks that did not, or if something is not attacked any more,
    whether it leaked before or not."""


@dataclass(frozen=True)
class Request(AuditOptions):
    """The options of an audit and the command line they came from."""

    command: str = ""

    @property
    def leaks_to_fail_on(self) -> frozenset[Leak]:
        """Return what --fail-on names."""
        return frozenset(self.fail_on or ())

    @property
    def printed(self) -> str:
        """Return how the answer is printed."""
        return "json" if self.as_json else self.format.value

    @property
    def of_the_sample(self) -> bool:
        """Return whether the embedded sample is meant: no option speaks of another update."""
        return self.share is None and not self.of_checkpoints and not self._of_an_update

    @property
    def _of_an_update(self) -> bool:
        """Return whether an option was given that only makes sense for an update of one's own."""
        said = (
            self.model, self.weights, self.truth, self.classes, self.normalise, self.input_shape,
            self.head, self.kind, self.lr, self.client, self.precision, self.samples,
            self.tokenizer,
        )  # fmt: skip
        return self.train_mode or self.random_weights or _any_given(*said)

    @property
    def of_checkpoints(self) -> bool:
        """Return whether --before or --after was given."""
        return _any_given(self.before, self.after)

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files besides the updates that are read and exist."""
        given = (self.weights, self.before, self.after, self.truth)
        return tuple(path for path in given if path is not None and path.exists())

    def check(self) -> None:
        """Raise ``SoftleakError`` with the first thing that is missing or contradicts another."""
        for words, wrong in self._mistakes().items():
            if wrong:
                raise SoftleakError(words)

    def _mistakes(self) -> dict[str, bool]:
        """Return what may be wrong, in words, and whether it is."""
        difference = self.kind in (UpdateKind.DELTA, UpdateKind.WEIGHTS)
        shared = self.share is not None
        return {
            "--labels-only attacks no input, so --fail-on input could never fail; leave out one of "
            "the two": self.labels_only and Leak.INPUT in self.leaks_to_fail_on,
            "say which update to audit: --share, or --before and --after": not shared
            and not self.of_checkpoints
            and self._of_an_update,
            "say which model the update is of: --model NAME or MODULE:FACTORY": self.model is None
            and not self.of_the_sample,
            "give --share, or --before and --after, not both": shared and self.of_checkpoints,
            "--before and --after belong together; give both": self.of_checkpoints
            and None in (self.before, self.after),
            "--kind says what --share holds; --before and --after hold weights anyway": (
                self.of_checkpoints and self.kind is not None
            ),
            "--lr is the learning rate of a step of weights: say --kind delta or --kind weights "
            "with it": shared and self.lr is not None and not difference,
            "--client says the learning rate as well: leave out --lr": self.client is not None
            and self.lr is not None,
            "--client trains and sends weights: say --kind delta or --kind weights with it": (
                shared and self.client is not None and not difference
            ),
            "--random-weights contradicts --weights and --before": self.random_weights
            and _any_given(self.weights, self.before),
            "--kind weights is a step from known weights: give the weights before it by "
            "--weights": self.kind is UpdateKind.WEIGHTS and self.weights is None,
        }


def _any_given(*options: object) -> bool:
    return any(option is not None for option in options)
