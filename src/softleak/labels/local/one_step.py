"""Find out whether an update of many samples is one step, as counting its classes takes.

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

from softleak.core.forward import forward_batch, random_tensor
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.share import GradientShare
from softleak.labels.composition import entry_error

# What tests whether an update is one step.
ONE_STEP_TEST_HOLDS = 1e-3  # relative: what float32 may leave where a model obeys the equation
ONE_STEP_TEST_SEEN = 0.1  # the part of a second step's products that has to stand out of rounding
ONE_STEP_TEST_ROUNDINGS = 2.0  # of an entry at most, adding up as independent ones do
ONE_STEP_TEST_SAMPLES = 4  # random samples that the equation is tried on
ONE_STEP_TEST_SEED = 0  # the seed of these samples


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
        """Return whether the share, times the rate ``lr``, is one step from ``parameters``."""
        if any(name not in share for name in self._names(parameters)):
            return OneStep(False, "not all gradients that would show it were sent")
        parameters = {n: p.detach() for n, p in parameters.items()}
        error = self._rounding(parameters, share)
        if bool((self._difference(parameters, share).abs() > error).any()):
            return OneStep(False, "it is not one plain step: there were more, or weight decay")
        second = lr * self._difference(share, share) / 2  # were it two equal steps
        if float(second.norm()) * ONE_STEP_TEST_SEEN < float(error.norm()):
            return OneStep(False, "rounding would hide a second step")
        return OneStep(True, "it is one step from the weights sent")

    def _names(self, parameters: Mapping[str, Tensor]) -> list[str]:
        mine = [f"{self.layer}.weight", f"{self.layer}.bias"]
        return [self.head.weight_name, *(name for name in mine if name in parameters)]

    def _rounding(self, parameters: Mapping[str, Tensor], share: GradientShare) -> Tensor:
        """Return (J,) what rounding may leave of the equation."""
        weights = {n: parameters[n].double() for n in self._names(parameters)}
        errors = {n: entry_error(share, n, parameters[n].dtype) for n in weights}
        squares = {n: w.square() for n, w in weights.items()}
        sizes = self._sums(
            squares, {n: torch.full_like(w, errors[n] ** 2) for n, w in weights.items()}
        )
        return ONE_STEP_TEST_ROUNDINGS * torch.stack(sizes).sum(0).sqrt()

    def _difference(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
        out, into = self._sums(one, other)
        return out - into

    def _sums(
        self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return (J,) the products of both, summed for each neuron: in the head, in the layer."""

        def product(name: str) -> Tensor:
            return one[name].double() * other[name].double()

        own = (f"{self.layer}.weight", f"{self.layer}.bias")
        into = [product(n).reshape(len(one[n]), -1).sum(1) for n in own if n in one and n in other]
        columns = product(self.head.weight_name).sum(0)
        return columns.reshape(len(into[0]), -1).sum(1), torch.stack(into).sum(0)

    def _obeyed(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> bool:
        weight = parameters[f"{self.layer}.weight"]
        if weight.dim() < 2 or self.head.W.shape[1] % len(weight):
            return False
        out, into = self._sums(parameters, gradients)
        size = float(out.norm() + into.norm())
        return size > 0 and float((out - into).norm()) <= ONE_STEP_TEST_HOLDS * size


def _of_noise(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the gradient of a batch of noise, as training would have it."""
    generator = torch.Generator().manual_seed(ONE_STEP_TEST_SEED)
    x = torch.stack([random_tensor(shape, i, generator) for i in range(ONE_STEP_TEST_SAMPLES)])
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.random.fork_rng([]), torch.enable_grad():
        z = forward_batch(model, x)
        loss = F.cross_entropy(z, torch.arange(ONE_STEP_TEST_SAMPLES) % z.shape[-1])
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g
            for (n, p), g in zip(named.items(), found, strict=True)}  # fmt: skip
