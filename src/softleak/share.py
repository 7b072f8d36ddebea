"""What a client sends: gradients by parameter name. Touches tensors and files, never a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from softleak import files
from softleak.errors import NonFinite, ShareError

COUNTERS = (torch.int32, torch.int64, torch.bool)  # what stands beside weights in a state
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Checkpoint = Mapping[str, Tensor] | str | PathLike[str]


@dataclass(frozen=True, eq=False)
class GradientShare(Mapping[str, Tensor]):
    """Gradients of one client, by parameter name. Layers may be missing.

    ``input_shape`` is public knowledge of the protocol (not of the sample): the shape of one
    input without the batch dimension. ``rounding`` is an absolute error per entry beyond that
    of the dtype, by parameter name: differences of checkpoints have one.
    """

    gradients: Mapping[str, Tensor]
    input_shape: tuple[int, ...] | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, gradient in self.gradients.items():
            if not isinstance(gradient, Tensor) or gradient.dtype not in DTYPES:
                kind = gradient.dtype if isinstance(gradient, Tensor) else type(gradient).__name__
                raise ShareError(
                    f"gradient {name!r} should be a floating-point tensor of 16 bits or more, got "
                    f"{kind}; convert it, or leave out what is not a gradient"
                )
            if gradient.layout is not torch.strided:
                raise ShareError(f"gradient {name!r} is sparse; make it dense with .to_dense()")
        if any(not 0 <= error < float("inf") for error in self.rounding.values()):
            raise ShareError("expected rounding errors that are finite and not negative")
        frozen = {name: gradient.detach() for name, gradient in self.gradients.items()}
        object.__setattr__(self, "gradients", MappingProxyType(frozen))
        object.__setattr__(self, "rounding", MappingProxyType(dict(self.rounding)))

    def __getitem__(self, name: str) -> Tensor:
        return self.gradients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.gradients)

    def __len__(self) -> int:
        return len(self.gradients)

    def resolution(self, name: str, computed_in: torch.dtype) -> float:
        """The relative rounding of a gradient: the coarser of what it was computed and sent in."""
        sent_in = self.gradients[name].dtype
        return max(torch.finfo(sent_in).eps, torch.finfo(computed_in).eps) / 2

    def expecting(self, noise: float) -> GradientShare:
        """The share, known to carry noise of this standard deviation on everything."""
        if not noise >= 0:
            raise ShareError(f"expected a standard deviation of noise, 0 or more, got {noise}")
        known = {name: math.hypot(noise, self.noise(name)) for name in self.gradients}
        return GradientShare(self.gradients, self.input_shape, known)

    def noise(self, name: str) -> float:
        """The absolute error of a gradient's entries beyond that of its dtype, if it was said."""
        return self.rounding.get(name, 0.0)

    def norm(self) -> float:
        """The L2 norm of all gradients together."""
        return math.hypot(*(float(g.double().norm()) for g in self.gradients.values()))

    def map(self, change: Callable[[str, Tensor], Tensor]) -> GradientShare:
        """The share with every gradient changed: what a defence does to it."""
        changed = {name: change(name, gradient) for name, gradient in self.gradients.items()}
        return GradientShare(changed, self.input_shape, self.rounding)

    def scaled(self, factor: float) -> GradientShare:
        """The share times a factor, as clipping or an unknown learning rate leave it."""
        changed = {name: gradient * factor for name, gradient in self.gradients.items()}
        rounding = {name: error * abs(factor) for name, error in self.rounding.items()}
        return GradientShare(changed, self.input_shape, rounding)

    def without(self, *names: str) -> GradientShare:
        """The share with some gradients withheld."""
        kept = {name: g for name, g in self.gradients.items() if name not in names}
        return GradientShare(kept, self.input_shape, self.rounding)

    def renamed(self, names: Mapping[str, str]) -> GradientShare:
        """The share with some gradients under other names."""
        changed = {names.get(name, name): gradient for name, gradient in self.gradients.items()}
        rounding = {names.get(name, name): error for name, error in self.rounding.items()}
        return GradientShare(changed, self.input_shape, rounding)

    def check_finite(self) -> None:
        """Raise ``NonFinite`` if a gradient holds NaN or infinity."""
        # A finite sum proves finite entries and is cheaper to have than a mask.
        suspects = [n for n, g in self.gradients.items() if not g.sum().isfinite()]
        bad = [n for n in suspects if not self.gradients[n].isfinite().all()]
        if bad:
            raise NonFinite(
                f"expected finite gradients, but {', '.join(bad)} holds NaN or infinity; "
                "the client's loss diverged or the file is damaged"
            )

    def check_shapes(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise ``ShareError`` if a gradient has another shape than its parameter."""
        shared = sorted(self.gradients.keys() & parameters.keys())
        for name in shared:
            came, expected = tuple(self.gradients[name].shape), tuple(parameters[name].shape)
            if came != expected:
                raise ShareError(
                    f"the gradient {name!r} should have its parameter's shape {expected}, got "
                    f"{came}; is it of this model?"
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write to .safetensors, .pt or .npz, whole or not at all."""
        files.save(Path(path), self.gradients, self.input_shape, self.rounding)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> GradientShare:
        """Read .safetensors, .pt (weights only) or .npz (no pickles); counters are left out."""
        content = files.load(Path(path))
        gradients = {n: g for n, g in content.tensors.items() if g.dtype not in COUNTERS}
        return cls(gradients, content.input_shape, content.rounding)

    @classmethod
    def from_update(cls, before: Checkpoint, after: Checkpoint, *, lr: float) -> GradientShare:
        """The gradient behind one step of plain SGD: ``(before − after) / lr``."""
        if not isinstance(lr, int | float) or not 0 < lr < float("inf"):
            raise ShareError(f"lr should be a positive learning rate, got {lr!r}")
        old, new = _tensors(before), _tensors(after)
        _check_same_parameters(old, new)
        gradients: dict[str, Tensor] = {}
        rounding: dict[str, float] = {}
        for name, start in old.items():
            if name not in new or not start.is_floating_point() or not start.numel():
                continue
            gradients[name] = (start.double() - new[name].double()) / lr
            ulp = torch.finfo(start.dtype).eps / 2
            rounding[name] = ulp * float(start.abs().max()) / lr
        return cls(gradients, rounding=rounding)


def _tensors(checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    if isinstance(checkpoint, Mapping):
        return checkpoint
    return files.load(Path(checkpoint)).tensors


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
