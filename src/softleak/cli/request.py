"""This module holds what was asked of ``softleak audit``, and which options do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from softleak.cli.options import AuditOptions
from softleak.errors import SoftleakError
from softleak.vocabulary import Leak, UpdateKind


@dataclass(frozen=True)
class Request(AuditOptions):
    """This holds the options of an audit and the command line they came from."""

    command: str = ""

    @property
    def leaks_to_fail_on(self) -> frozenset[Leak]:
        """Return what --fail-on names."""
        return frozenset(self.fail_on or ())

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
        for wrong, words in self._mistakes():
            if wrong:
                raise SoftleakError(words)

    def _mistakes(self) -> list[tuple[bool, str]]:
        difference = self.kind in (UpdateKind.DELTA, UpdateKind.WEIGHTS)
        return [
            (
                self.labels_only and Leak.INPUT in self.leaks_to_fail_on,
                "--labels-only attacks no input, so --fail-on input could never fail; leave out "
                "one of the two",
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
                self.of_checkpoints and self.kind is not None,
                "--kind says what --share holds; --before and --after hold weights anyway",
            ),
            (
                self.share is not None and self.lr is not None and not difference,
                "--lr is the learning rate of a step of weights: say --kind delta or --kind "
                "weights with it",
            ),
            (
                self.client is not None and self.lr is not None,
                "--client says the learning rate as well: leave out --lr",
            ),
            (
                self.share is not None and self.client is not None and not difference,
                "--client trains and sends weights: say --kind delta or --kind weights with it",
            ),
            (
                self.random_weights and _any_given(self.weights, self.before),
                "--random-weights contradicts --weights and --before",
            ),
            (
                self.kind is UpdateKind.WEIGHTS and self.weights is None,
                "--kind weights is a step from known weights: give the weights before it by "
                "--weights",
            ),
        ]


def _any_given(*options: object) -> bool:
    return any(option is not None for option in options)
