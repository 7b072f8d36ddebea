"""What features a model makes of random inputs: all that is known of one before any gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.capture import forward_one
from softleak.head import Head
from softleak.inputs import accepted_shapes, random_input

INPUTS = 16
DOUBT = 0.5  # in logarithm: how much larger or smaller features of real inputs may well be
OPPOSED = math.log(1e-3)  # a feature that points away from all others
SEED = 0


@dataclass(frozen=True, eq=False)
class Typical:
    """The usual direction of a feature, a unit vector (I,), and how long it is along it.

    ``length`` and ``doubt`` are of the logarithm; without any knowledge every length is as likely.
    ``across`` is how long a feature is across that direction, as a part of its length along it.
    """

    direction: Tensor
    across: float = 1.0
    length: float = 0.0
    doubt: float = math.inf

    def log_prior(self, along: Tensor, error: float, tau: Tensor) -> Tensor:
        """(S,) of scalars τ, if the gradient is ``along`` in the usual direction, by d log τ."""
        if math.isinf(self.doubt):
            return torch.zeros_like(tau)
        variance = self.doubt**2 + (error / along).square()
        far = along.log() - tau.abs().log() - self.length
        log = -(far.square() / variance + variance.log()) / 2
        return torch.where(tau > 0, log, log + OPPOSED)

    @classmethod
    def unknown(cls, head: Head) -> Typical:
        """Nothing but that entries are rather of one sign, as an activation leaves them."""
        inputs = head.W.shape[1]
        return cls(torch.full((inputs,), inputs**-0.5, dtype=torch.double, device=head.W.device))

    @classmethod
    def of(cls, model: nn.Module, head: Head, shape: tuple[int, ...] | None) -> Typical:
        """As a model makes them of noise, fine and coarse; unknown if it cannot be run."""
        shape = shape or next(accepted_shapes(model), None)
        if shape is None:
            return cls.unknown(head)
        features = features_of_noise(model, head, shape)
        mean = features.mean(0)
        along = features @ mean / mean.norm()
        if not float(mean.norm()) > 0 or not bool((along > 0).all()):
            return cls.unknown(head)
        across = float((features.square().sum(-1) / along.square() - 1).clamp_min(0).mean())
        doubt = math.hypot(DOUBT, float(along.log().std()))
        return cls(mean / mean.norm(), math.sqrt(across), float(along.log().mean()), doubt)


def features_of_noise(model: nn.Module, head: Head, shape: tuple[int, ...]) -> Tensor:
    """(n, I) what enters the head, in float64."""
    entered: list[Tensor] = []  # the last one: an input may be tried with and without a batch
    seen: list[Tensor] = []

    def look(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        entered[:] = [inputs[0].detach().double()[0]]

    handle = model.get_submodule(head.name).register_forward_hook(look)
    generator = torch.Generator().manual_seed(SEED)
    devices = [head.W.device] if head.W.is_cuda else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            for index in range(INPUTS):
                forward_one(model, random_input(shape, index, generator))
                seen += entered
    finally:
        handle.remove()
    return torch.stack(seen)
