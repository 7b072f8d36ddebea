"""Whether an update is one step from the weights it is read at, whatever the batch.

A neuron between a layer ``W`` with bias ``b`` and the head ``V`` that multiplies through (a ReLU,
with or without pooling) has, for any sample and at any one set of weights,

    Σ_k V_kj ∂L/∂V_kj = Σ_m W_jm ∂L/∂W_jm + b_j ∂L/∂b_j.

Steps that follow are taken at other weights and break it: an update Δ of several steps is off by
the products of their gradients, which are of the size of ``‖ΔV_j‖² − ‖ΔW_j‖² − Δb_j²``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.forward import forward_batch
from softleak.head import Head
from softleak.input_shapes import random_tensor
from softleak.input_spec import Layout
from softleak.share import GradientShare


@dataclass(frozen=True)
class OneStepSettings:
    """These settings test whether an update is one step."""

    holds: float = 1e-3  # relative: what float32 may leave of the equation on a model that obeys it
    seen: float = 0.1  # the part of a second step's products that has to stand out of rounding
    roundings: float = 2.0  # of the largest rounding of an entry, adding up as independent ones do
    samples: int = 4  # random samples that the equation is tried on
    seed: int = 0  # the seed of these samples


ONE_STEP_TEST = OneStepSettings()


@dataclass(frozen=True)
class OneStep:
    """Whether a share was found to be one step, and the reason."""

    proved: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Balance:
    """The layer before the head for which the equation holds, by name, and the head."""

    head: Head
    layer: str

    @classmethod
    def of(cls, model: nn.Module, head: Head, shape: Layout | None) -> Balance | None:
        """Try every layer on noise; None if no layer obeys the equation or the model cannot run."""
        if not isinstance(shape, tuple):
            return None
        try:
            gradients = _of_noise(model, shape)
        except Exception:  # the model's own code may raise anything
            return None
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        for name in reversed([n for n, m in model.named_modules() if hasattr(m, "weight")]):
            found = cls(head, name)
            if name != head.name and found._obeyed(parameters, gradients):
                return found
        return None

    def check(self, share: GradientShare, parameters: Mapping[str, Tensor], lr: float) -> OneStep:
        """Return whether the share, times the learning rate ``lr``, is one step from
        ``parameters``.
        """
        if any(name not in share for name in self._names(parameters)):
            return OneStep(False, "not all gradients that would show it were sent")
        parameters = {n: p.detach() for n, p in parameters.items()}
        left, error = self._left(parameters, share)
        if bool((left.abs() > error).any()):
            return OneStep(False, "it is not one plain step: there were more, or weight decay")
        second = lr * self._difference(share, share) / 2  # were it two equal steps
        if float(second.norm()) * ONE_STEP_TEST.seen < float(error.norm()):
            return OneStep(False, "rounding would hide a second step")
        return OneStep(True, "it is one step from the weights sent")

    def _names(self, parameters: Mapping[str, Tensor]) -> list[str]:
        mine = [f"{self.layer}.weight", f"{self.layer}.bias"]
        return [self.head.weight_name, *(name for name in mine if name in parameters)]

    def _left(
        self, parameters: Mapping[str, Tensor], share: GradientShare
    ) -> tuple[Tensor, Tensor]:
        """Return (J,) what is left of the equation, and what rounding may leave of it."""
        rounding = {n: _error(share, n, parameters[n].dtype) for n in self._names(parameters)}
        sizes = self._sums(
            {n: parameters[n].double().square() for n in rounding},
            {n: torch.full_like(parameters[n].double(), e**2) for n, e in rounding.items()},
        )
        return self._difference(parameters, share), ONE_STEP_TEST.roundings * torch.stack(
            sizes
        ).sum(0).sqrt()

    def _difference(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
        out, into = self._sums(one, other)
        return out - into

    def _sums(
        self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return (J,) the products of both, added up for each neuron.

        In the head, and in the layer.
        """
        into = [
            (one[n].double() * other[n].double()).flatten(1).sum(1)
            if one[n].dim() > 1 else one[n].double() * other[n].double()
            for n in (f"{self.layer}.weight", f"{self.layer}.bias") if n in one and n in other
        ]  # fmt: skip
        name = self.head.weight_name
        columns = (one[name].double() * other[name].double()).sum(0)
        return columns.reshape(len(into[0]), -1).sum(1), torch.stack(into).sum(0)

    def _obeyed(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> bool:
        weight = parameters[f"{self.layer}.weight"]
        if weight.dim() < 2 or self.head.W.shape[1] % len(weight):
            return False
        out, into = self._sums(parameters, gradients)
        size = float(out.norm() + into.norm())
        return size > 0 and float((out - into).norm()) <= ONE_STEP_TEST.holds * size


def _error(share: GradientShare, name: str, dtype: torch.dtype) -> float:
    return share.resolution(name, dtype) * float(share[name].abs().max()) + share.noise(name)


def _of_noise(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the gradient of a batch of noise, as training would have it."""
    generator = torch.Generator().manual_seed(ONE_STEP_TEST.seed)
    x = torch.stack([random_tensor(shape, i, generator) for i in range(ONE_STEP_TEST.samples)])
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.random.fork_rng([]), torch.enable_grad():
        z = forward_batch(model, x)
        loss = F.cross_entropy(z, torch.arange(ONE_STEP_TEST.samples) % z.shape[-1])
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g
            for (n, p), g in zip(named.items(), found, strict=True)}  # fmt: skip
