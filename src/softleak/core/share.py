"""What a client sends, and how it says it trained. Nothing here touches a model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from softleak import io as tensor_files
from softleak.core.errors import NonFinite, OptionError, ShareError
from softleak.core.input_spec import Layout
from softleak.core.results import ShortRepr
from softleak.core.vocabulary import ROUNDOFF, Precision

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
        wrong = [
            f"{name} should be {expected}, got {getattr(self, name)!r}"
            for name, (fits, expected) in _SENSIBLE.items()
            if getattr(self, name) is not UNKNOWN and not fits(getattr(self, name))
        ]
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            wrong.append("nesterov needs a momentum and no dampening")
        if wrong:
            raise OptionError(f"this client cannot train: {'; '.join(wrong)}")

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
        """Return the indices (B,) of the samples of every step, in the order of the steps."""
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


def _counts(value: object) -> bool:
    return value is None or (isinstance(value, int) and value >= 1)


def _up_to(most: float) -> tuple[Callable[[Any], bool], str]:
    return lambda x: isinstance(x, int | float) and 0 <= x <= most, f"a number from 0 to {most:g}"


# Which settings make sense, and what is expected of them.
_SENSIBLE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("steps", "epochs", "batch_size"), (_counts, "a whole number of at least 1")
    ),
    "optimiser": (("sgd", "adam", "adamw").__contains__, '"sgd", "adam" or "adamw"'),
    "lr": (
        lambda lr: lr is None or (isinstance(lr, int | float) and 0 < lr <= 1e6),
        "a positive learning rate, None or UNKNOWN",
    ),
    "momentum": _up_to(1.0), "dampening": _up_to(1.0), "weight_decay": _up_to(1e6),
    "betas": (
        lambda betas: len(betas) == 2 and all(0 <= float(beta) < 1 for beta in betas),
        "two numbers from 0 to below 1",
    ),
}  # fmt: skip
# How a setting is read from text, where it is not a number.
_READERS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("steps", "epochs", "batch_size", "seed"), int),
    "optimiser": str.lower,
    "nesterov": lambda text: {"true": True, "false": False}[text.lower()],
    "betas": lambda text: tuple(map(float, text.split("/"))),
}


def read_settings(text: str) -> dict[str, object]:
    """Return the settings that a text such as ``lr=0.01,steps=5,momentum=?`` gives."""
    found: dict[str, object] = {}
    known = [f.name for f in fields(LocalTraining)]
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
        return _READERS.get(name, float)(text)
    except (ValueError, KeyError) as error:
        raise OptionError(f"{name} cannot be {text!r}") from error


LARGEST_SQUARABLE = 1e100  # the squares of larger numbers may overflow
COUNTERS = (torch.int32, torch.int64, torch.bool)  # what stands beside weights in a state
SENT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Checkpoint = Mapping[str, Tensor] | str | PathLike[str]
Scale = Literal["known", "unknown"]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False, repr=False)
class GradientShare(ShortRepr, Mapping[str, Tensor]):
    """The gradients of one client by parameter name. Layers may be missing.

    Attributes:
        gradients: the tensors, by the name of their parameter.
        input_shape: the shape of one input without the batch dimension; an ``InputSpec`` if the
            input is not one tensor of real numbers. It is public knowledge of the protocol, not of
            the sample.
        rounding: an absolute error per entry beyond that of the dtype, by parameter name. A
            difference of checkpoints has one.
        scale: "known" if it is stated that the share is the gradient itself, "unknown" if it may
            be the gradient times any positive factor. None means not stated: the share is read as
            the gradient itself, but a simpler reading of the same numbers counts too.
        precision: the coarsest number format the client computed in, if it is coarser than the
            dtypes of the model and of the share, as with autocast.
        made_by: the local training behind the share, if it is stated. The share is then
            ``before − after``, not a gradient.
    """

    gradients: Mapping[str, Tensor]
    input_shape: Layout | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)
    scale: Scale | None = None
    precision: Precision | None = None
    made_by: LocalTraining | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name, gradient in self.gradients.items():
            _check_gradient(name, gradient)
        if any(not 0 <= error < float("inf") for error in self.rounding.values()):
            raise ShareError("expected rounding errors that are finite and not negative")
        if self.scale not in (None, "known", "unknown"):
            raise ShareError(f'scale should be "known", "unknown" or None, got {self.scale!r}')
        if self.precision is not None and self.precision not in ROUNDOFF:
            formats = ", ".join(ROUNDOFF)
            raise ShareError(f"precision should be one of {formats}, got {self.precision!r}")
        if self.made_by is not None and not isinstance(self.made_by, LocalTraining):
            raise ShareError(f"made_by should be a Client that trains, got {self.made_by!r}")
        frozen = {name: gradient.detach() for name, gradient in self.items()}
        object.__setattr__(self, "gradients", MappingProxyType(frozen))
        object.__setattr__(self, "rounding", MappingProxyType(dict(self.rounding)))

    def __getitem__(self, name: str) -> Tensor:
        return self.gradients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.gradients)

    def __len__(self) -> int:
        return len(self.gradients)

    def __reduce__(self) -> tuple[type[GradientShare], tuple[object, ...]]:
        """Return what pickling and copying keep: all but what was computed of the share."""
        facts = (self.input_shape, dict(self.rounding), self.scale, self.precision, self.made_by)
        return type(self), (dict(self.gradients), *facts)

    def _lines(self) -> Iterator[str]:
        numbers = sum(gradient.numel() for gradient in self.values())
        kinds = sorted({str(gradient.dtype).rpartition(".")[2] for gradient in self.values()})
        held = f"{len(self)} gradients, {numbers:,} numbers in {' and '.join(kinds) or 'no format'}"
        yield f"GradientShare: {held}, scale {self.scale or 'not stated'}"
        if self.input_shape is not None:
            yield f"  of an input {self.input_shape}"
        if self.made_by is not None:
            yield f"  made by local training, {self.made_by}"

    def once(self, key: Hashable, compute: Callable[[], Made]) -> Made:
        """Return what ``compute`` makes of this share, remembered by all that it depends on."""
        if key not in self._made:
            self._made[key] = compute()
        found: Made = self._made[key]
        return found

    def remembers(self, key: Hashable) -> bool:
        """Return whether ``once`` has an answer for a key."""
        return key in self._made

    def resolution(self, name: str, computed_in: torch.dtype) -> float:
        """Return the relative rounding of a gradient: the coarsest it was computed or sent in."""
        sent_in = self.gradients[name].dtype
        said = ROUNDOFF[self.precision] if self.precision else 0.0
        return max(torch.finfo(sent_in).eps / 2, torch.finfo(computed_in).eps / 2, said)

    def smallest(self, name: str, computed_in: torch.dtype) -> float:
        """Return the size below which entries of a gradient are less exact than ``resolution``."""
        said = torch.finfo(torch.float16).tiny if self.precision == "float16" else 0.0
        formats = (self.gradients[name].dtype, computed_in)
        return max(said, *(torch.finfo(one).tiny for one in formats))

    def expecting(self, noise: float) -> GradientShare:
        """Return the share, known to carry noise of this standard deviation on everything."""
        if not noise >= 0:
            raise ShareError(f"expected a standard deviation of noise, 0 or more, got {noise}")
        known = {name: math.hypot(noise, self.noise(name)) for name in self}
        return replace(self, rounding=known)

    def noise(self, name: str) -> float:
        """Return the stated absolute error of a gradient's entries beyond that of its dtype."""
        return self.rounding.get(name, 0.0)

    def largest(self, name: str) -> float:
        """Return the largest absolute entry of a gradient; NaN if it holds one."""
        gradient = self.gradients[name]
        if not gradient.numel():
            return 0.0
        low, high = (float(end) for end in torch.aminmax(gradient))
        return high if math.isnan(high) else max(-low, high)

    def norm(self) -> float:
        return math.hypot(*(float(g.double().norm()) for g in self.gradients.values()))

    def map(self, change: Callable[[str, Tensor], Tensor]) -> GradientShare:
        """Return the share with every gradient changed: what a defence does to it."""
        changed = {name: change(name, gradient) for name, gradient in self.items()}
        # It is not stated any more for numbers that were changed.
        return replace(self, gradients=changed, scale=None if self.scale == "known" else self.scale)

    def scaled(self, factor: float) -> GradientShare:
        """Return the share times a factor, as clipping or an unknown learning rate leave it."""
        rounding = {name: error * abs(factor) for name, error in self.rounding.items()}
        return replace(self.map(lambda _, gradient: gradient * factor), rounding=rounding)

    def without(self, *names: str) -> GradientShare:
        """Return the share with some gradients withheld."""
        return replace(self, gradients={n: g for n, g in self.items() if n not in names})

    def renamed(self, names: Mapping[str, str]) -> GradientShare:
        """Return the share with some gradients under other names."""
        changed = {names.get(name, name): gradient for name, gradient in self.items()}
        rounding = {names.get(name, name): error for name, error in self.rounding.items()}
        return replace(self, gradients=changed, rounding=rounding)

    def check_finite(self) -> None:
        """Raise ``NonFinite`` if a gradient holds NaN or infinity; a share is looked at once."""
        self.once(GradientShare.check_finite, self._find_no_strange_numbers)

    def _find_no_strange_numbers(self) -> None:
        # A finite sum proves finite entries, which can be squared if the format is short; finite
        # extremes prove it too. Both are cheaper to have than a mask.
        short = {n: g for n, g in self.items() if torch.finfo(g.dtype).max < LARGEST_SQUARABLE}
        fine = {name for name, g in short.items() if math.isfinite(float(g.sum()))}
        largest = {name: self.largest(name) for name in self if name not in fine}
        bad = [name for name, size in largest.items() if not math.isfinite(size)]
        if bad:
            raise NonFinite(
                f"expected finite gradients, but {', '.join(bad)} holds NaN or infinity; "
                "the client's loss diverged or the file is damaged"
            )
        huge = [name for name, size in largest.items() if size > LARGEST_SQUARABLE]
        if huge:
            raise ShareError(
                f"the gradient {huge[0]!r} has entries above {LARGEST_SQUARABLE:.0e}, as no "
                "loss gives; the file is damaged, or not of gradients"
            )

    def check_shapes(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise ``ShareError`` if a gradient has another shape than its parameter."""
        for name in sorted(self.keys() & parameters.keys()):
            came, expected = tuple(self[name].shape), tuple(parameters[name].shape)
            if came != expected:
                raise ShareError(
                    f"the gradient {name!r} should have its parameter's shape {expected}, got "
                    f"{came}; is it of this model?"
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write to .safetensors, .pt or .npz, whole or not at all."""
        facts = (self.gradients, self.input_shape, self.rounding, self.scale, self.precision)
        client = None if self.made_by is None else str(self.made_by)
        tensor_files.save(Path(path), tensor_files.Content(*facts, client=client))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> GradientShare:
        """Read .safetensors, .pt (weights only) or .npz (no pickles); counters are left out."""
        return cls.of_file(tensor_files.load(Path(path)))

    @classmethod
    def of_file(cls, held: tensor_files.Content) -> GradientShare:
        """Return the share that a file holds, once it was read; counters are left out."""
        gradients = {n: g for n, g in held.tensors.items() if g.dtype not in COUNTERS}
        scale, precision = cast(Scale, held.scale), cast(Precision, held.precision)
        made_by = None if held.client is None else LocalTraining(**read_settings(held.client))  # type: ignore[arg-type]
        return cls(gradients, held.input_shape, held.rounding, scale, precision, made_by)

    @classmethod
    def from_update(
        cls, before: Checkpoint, after: Checkpoint, *, lr: float | None = None,
        client: LocalTraining | None = None,
    ) -> GradientShare:  # fmt: skip
        """Return the gradient behind one step of plain SGD: ``(before − after) / lr``.

        Without a learning rate the share is ``before − after``, and its scale is unknown. With a
        ``client`` that trains, such as ``Client(lr=0.01, steps=5)``, it is ``before − after`` too,
        and remembers how it was made.
        """
        if client is not None and (lr is not None or not client.trains):
            raise ShareError(
                "expected either lr, for one plain step, or a client that trains, such as "
                f"Client(lr=0.01, steps=5); got lr={lr!r} and the client {client}"
            )
        rate = _checked_rate(lr)
        old, new = _tensors(before), _tensors(after)
        _check_same_parameters(old, new)
        gradients: dict[str, Tensor] = {}
        rounding: dict[str, float] = {}
        for name, start in old.items():
            if name not in new or not start.numel():
                continue
            if not (start.is_floating_point() and new[name].is_floating_point()):
                continue
            gradients[name] = (start.double() - new[name].double()) / rate
            ulp = max(torch.finfo(t.dtype).eps for t in (start, new[name])) / 2
            rounding[name] = ulp * float(start.detach().abs().max()) / rate
        if client is not None:
            # Each step rounds the weights anew; roundings are independent and add as squares do.
            steps = client.single_steps or 1
            grown = {n: e * steps**0.5 for n, e in rounding.items()}
            return cls(gradients, rounding=grown, made_by=client.training)
        return cls(gradients, rounding=rounding, scale=None if lr else "unknown")

    @classmethod
    def from_delta(cls, delta: Checkpoint, *, lr: float | None = None) -> GradientShare:
        """Return the gradient behind a difference of weights ``after − before``: ``−delta / lr``.

        Without a learning rate the share is ``−delta``, and its scale is unknown. The rounding of
        the weights is not known here; ``from_update`` knows it, having both checkpoints.
        """
        rate = _checked_rate(lr)
        held = {n: d for n, d in _tensors(delta).items() if d.dtype not in COUNTERS}
        gradients = {name: -difference / rate for name, difference in held.items()}
        return cls(gradients, scale=None if lr else "unknown")


def _checked_rate(lr: float | None) -> float:
    if lr is None:
        return 1.0
    if not isinstance(lr, int | float) or not 0 < lr < float("inf"):
        raise ShareError(f"lr should be a positive learning rate, got {lr!r}")
    return lr


def _check_gradient(name: str, gradient: object) -> None:
    if not isinstance(gradient, Tensor) or gradient.dtype not in SENT_DTYPES:
        kind = gradient.dtype if isinstance(gradient, Tensor) else type(gradient).__name__
        raise ShareError(
            f"gradient {name!r} should be a floating-point tensor of 16 bits or more, got "
            f"{kind}; convert it, or leave out what is not a gradient"
        )
    if gradient.layout is not torch.strided:
        raise ShareError(f"gradient {name!r} is sparse; make it dense with .to_dense()")
    if gradient.is_meta:
        raise ShareError(f"gradient {name!r} is a meta tensor, which holds no numbers")


def _tensors(checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    if isinstance(checkpoint, Mapping):
        return checkpoint
    return tensor_files.load(Path(checkpoint)).tensors


def _check_same_parameters(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    shared = old.keys() & new.keys()
    if not shared:
        one, other = (", ".join(list(names)[:3]) or "nothing" for names in (old, new))
        raise ShareError(
            "expected two checkpoints of one model, but they have no parameter name in common: "
            f"one holds {one} …, the other {other} …"
        )
    different = sorted(name for name in shared if old[name].shape != new[name].shape)
    if different:
        name = different[0]
        raise ShareError(
            f"{len(different)} parameters differ in shape between the checkpoints, first {name!r}: "
            f"{tuple(old[name].shape)} before, {tuple(new[name].shape)} after"
        )


def alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the indices of equal keys, in the order in which these come first."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        groups[key].append(index)
    return list(groups.values())
