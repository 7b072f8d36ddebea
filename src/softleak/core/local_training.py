"""Local training: the steps a client takes before it sends anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from softleak.core.errors import OptionError

OptimiserName = Literal["sgd", "adam", "adamw"]


class Unknown(Enum):
    """A setting of the client that the attacker does not know."""

    UNKNOWN = "?"

    def __str__(self) -> str:
        return "?"


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The steps a client takes from the weights it was sent.

    Without a learning rate the client takes no step: it sends the gradient itself. With one it
    trains, and sends ``before − after``. ``steps``, ``lr``, ``momentum`` and ``weight_decay`` may
    be ``UNKNOWN`` to an attacker; a client that runs has to know them all.

    Attributes:
        steps: the number of steps, if ``epochs`` does not say it.
        epochs: the passes over the data; the number of steps then follows from the batch size.
        batch_size: the samples of a step; None takes all of them. The last batch may be smaller.
        optimiser: "sgd", "adam" or "adamw", as torch.optim defines them.
        lr: the learning rate; None means that the gradient itself is sent.
        momentum: SGD's factor of the previous direction; a client starts without one.
        dampening: what SGD takes off a new gradient before it is added to the momentum.
        weight_decay: the factor of the weights that is added to the gradient (AdamW: taken off
            the weights instead).
        nesterov: whether SGD looks ahead along the momentum.
        betas: Adam's decay of the mean gradient and of the mean square.
        eps: what Adam adds to the root of the mean square.
        seed: the seed that the order of the samples is drawn with, anew in each epoch; None takes
            them in the order they are given.
    """

    steps: int | Unknown = 1
    epochs: int | None = None
    batch_size: int | None = None
    optimiser: OptimiserName = "sgd"
    lr: float | Unknown | None = None
    momentum: float | Unknown = 0.0
    dampening: float = 0.0
    weight_decay: float | Unknown = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    seed: int | None = None

    def __post_init__(self) -> None:
        problems = [*self._wrong_counts(), *self._wrong_factors()]
        if problems:
            raise OptionError(f"this client cannot train: {'; '.join(problems)}")

    def _wrong_counts(self) -> Iterator[str]:
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if value not in (None, UNKNOWN) and (not isinstance(value, int) or value < 1):
                yield f"{name} should be a whole number of at least 1, got {value!r}"
        if self.optimiser not in ("sgd", "adam", "adamw"):
            yield f'optimiser should be "sgd", "adam" or "adamw", got {self.optimiser!r}'
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            yield "nesterov needs a momentum and no dampening"

    def _wrong_factors(self) -> Iterator[str]:
        if self.lr not in (None, UNKNOWN) and (not _within(self.lr, 0.0, 1e6) or self.lr == 0):
            yield f"lr should be a positive learning rate, None or UNKNOWN, got {self.lr!r}"
        for name, below in (("momentum", 1.0), ("dampening", 1.0), ("weight_decay", 1e6)):
            value = getattr(self, name)
            if value is not UNKNOWN and not _within(value, 0.0, below):
                yield f"{name} should be a number from 0 to {below:g}, got {value!r}"
        if not all(_within(beta, 0.0, 1.0) and beta < 1 for beta in self.betas):
            yield f"betas should be two numbers from 0 to below 1, got {self.betas!r}"

    @property
    def trains(self) -> bool:
        """Return whether the client sends an update of its weights, not a gradient."""
        return self.lr is not None

    @property
    def single_steps(self) -> int | None:
        """Return the steps of a client with one sample; None if they are unknown."""
        if self.epochs:
            return self.epochs
        return self.steps if isinstance(self.steps, int) else None

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Return the names of the settings that are not known."""
        return tuple(f.name for f in fields(LocalTraining) if getattr(self, f.name) is UNKNOWN)

    @property
    def training(self) -> LocalTraining:
        """Return these settings alone, without what a subclass adds."""
        return LocalTraining(**{f.name: getattr(self, f.name) for f in fields(LocalTraining)})

    def batches(self, samples: int, device: torch.device) -> list[Tensor]:
        """Return the indices (B,) of the samples of every step, in the order of the steps.

        Args:
            samples: the number of samples the client has.
            device: where the indices are needed.
        """
        size = min(self.batch_size or samples, samples)
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        per_epoch = -(-samples // size)
        steps = per_epoch * self.epochs if self.epochs else self.steps
        if not isinstance(steps, int):
            raise OptionError("the number of steps is unknown: a client that runs needs it")
        found: list[Tensor] = []
        while len(found) < steps:
            order = torch.arange(samples)
            if generator is not None:
                order = torch.randperm(samples, generator=generator)
            found += torch.split(order.to(device), size)
        return found[:steps]

    def __str__(self) -> str:
        """Return the settings that are not the default, as the command line takes them."""
        held = {f.name: (getattr(self, f.name), f.default) for f in fields(LocalTraining)}
        said = {name: value for name, (value, default) in held.items() if value != default}
        words = {n: "/".join(map(str, v)) if isinstance(v, tuple) else v for n, v in said.items()}
        return ",".join(f"{name}={word}" for name, word in words.items())


def read_settings(text: str) -> dict[str, object]:
    """Return the settings that a text such as ``lr=0.01,steps=5,momentum=?`` gives.

    Pairs are separated by commas or lines; ``#`` begins a remark. Raises ``OptionError`` that says
    what was expected.
    """
    found: dict[str, object] = {}
    known = {f.name: f for f in fields(LocalTraining)}
    lines = [line.split("#")[0] for line in text.splitlines()]
    for pair in (p.strip() for line in lines for p in line.split(",")):
        if not pair:
            continue
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name not in known or not equals:
            raise OptionError(
                f"expected settings such as lr=0.01,steps=5,momentum=0.9, got {pair!r}; the "
                f"settings are {', '.join(known)}"
            )
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> object:
    """Return the value of one setting, read from text."""
    if text == "?":
        return UNKNOWN
    if text.lower() == "none":
        return None
    try:
        if name == "optimiser":
            return text.lower()
        if name == "nesterov":
            return {"true": True, "false": False}[text.lower()]
        if name == "betas":
            first, second = text.split("/")
            return float(first), float(second)
        whole = name in ("steps", "epochs", "batch_size", "seed")
        return int(text) if whole else float(text)
    except (ValueError, KeyError) as error:
        raise OptionError(f"{name} cannot be {text!r}") from error


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low <= value <= high
