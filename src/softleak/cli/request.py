"""What was asked of ``softleak audit``: the options as given, and which do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from softleak.audit import Kind, Leak, Options, Reading
from softleak.errors import SoftleakError


@dataclass(frozen=True)
class Request:
    """The options as they were given."""

    model: str | None
    weights: Path | None
    random_weights: bool
    share: Path | None
    before: Path | None
    after: Path | None
    reading: Reading
    each: int
    seed: int
    input_shape: str | None
    head: str | None
    classes: str | None
    normalise: str | None
    options: Options
    train_mode: bool
    truth: Path | None
    seeds: int  # of what-if; none if nobody asks
    fail_on: frozenset[Leak]
    command: str

    @property
    def of_the_sample(self) -> bool:
        """Whether nothing was said but what the embedded sample has, too."""
        return self.share is None and not self.of_checkpoints and not self._of_an_update

    @property
    def _of_an_update(self) -> bool:
        """Whether something was said that only an update of one's own has."""
        said = (
            self.model, self.weights, self.truth, self.classes, self.normalise, self.input_shape,
            self.head, self.reading.kind, self.reading.lr, self.reading.precision,
            self.options.samples,
        )  # fmt: skip
        return self.train_mode or self.random_weights or _any_given(*said)

    @property
    def of_checkpoints(self) -> bool:
        """Whether something was said of two checkpoints."""
        return _any_given(self.before, self.after)

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read, the shares of a folder apart."""
        given = (self.weights, self.before, self.after, self.share, self.truth)
        return tuple(path for path in given if path is not None and path.exists())

    def check(self) -> None:
        """Raise ``SoftleakError`` with the first thing that is missing or contradicts another."""
        for wrong, words in self._mistakes():
            if wrong:
                raise SoftleakError(words)

    def _mistakes(self) -> list[tuple[bool, str]]:
        kind, lr = self.reading.kind, self.reading.lr
        difference = kind in (Kind.DELTA, Kind.WEIGHTS)
        return [
            (
                not self.options.inputs and Leak.INPUT in self.fail_on,
                "--labels-only attacks no input, so that --fail-on input could never tell; leave "
                "out one of the two",
            ),
            (
                self.share is None and not self.of_checkpoints and self._of_an_update,
                "say which update to audit: --share, or --before and --after",
            ),
            (
                not self.of_the_sample and self.model is None,
                "say which model the update is of: --model NAME or MODULE:FACTORY",
            ),
            (
                self.share is not None and self.of_checkpoints,
                "give --share, or --before and --after, not both",
            ),
            (
                self.of_checkpoints and None in (self.before, self.after),
                "--before and --after belong together; give both",
            ),
            (
                self.of_checkpoints and kind is not None,
                "--kind says what --share holds; --before and --after hold weights anyway",
            ),
            (
                self.share is not None and lr is not None and not difference,
                "--lr is that of a step of weights: say --kind delta or --kind weights with it",
            ),
            (
                self.random_weights and _any_given(self.weights, self.before),
                "--random-weights contradicts --weights and --before",
            ),
            (
                kind is Kind.WEIGHTS and self.weights is None,
                "--kind weights is a step from known weights: give those before it by --weights",
            ),
        ]


def _any_given(*options: object) -> bool:
    return any(option is not None for option in options)
