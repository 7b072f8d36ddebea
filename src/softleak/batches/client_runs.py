"""This module runs the client on copies of the model, in its own precision and in float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.client import Client
from softleak.errors import ModelError
from softleak.share import GradientShare
from softleak.subject import Subject

Gradients = Mapping[str, Tensor]


def own_copy(subject: Subject) -> nn.Module:
    """Return a copy of the model with the gradients of all its parameters switched on."""
    return _copied(subject.model)


def exact_copy(subject: Subject) -> nn.Module:
    """Return such a copy in float64."""
    return _copied(subject.model).double()


def _copied(model: nn.Module) -> nn.Module:
    try:
        copied = copy.deepcopy(model)
    except Exception as error:  # a stranger's model may hold anything
        raise ModelError(f"the model cannot be copied to simulate the client: {error}") from error
    for parameter in copied.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return copied


def simulated(
    model: nn.Module, inputs: Tensor, labels: Tensor, share: GradientShare, scale: float
) -> Gradients:
    """Return, in float64, the gradients of the share's parameters."""
    sent = Client().share(model, inputs, labels)
    return {n: g.double() * scale for n, g in sent.items() if n in share}


def moved_run(
    own: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    share: GradientShare,
    scale: float,
    generator: torch.Generator,
    far: float = 1.0,
    errors: Tensor | None = None,
) -> Gradients:
    """Return a simulation in the client's precision, inputs moved by about ``far`` errors.

    Their errors are those of rounding, if no others are given.
    """
    rounding = torch.finfo(next(own.parameters()).dtype).eps * inputs.abs()
    errors = rounding if errors is None else rounding.maximum(errors)
    moves = torch.randn(inputs.shape, generator=generator, dtype=torch.double)
    moved = inputs + far * errors * moves.to(inputs.device)
    return simulated(own, moved, labels, share, scale)


def root_mean_square(x: Tensor) -> Tensor:
    """Return the root of the mean square of all entries, zero if there is none."""
    return x.square().mean().sqrt() if x.numel() else x.new_zeros(())


@dataclass(frozen=True)
class RunSizes:
    """These are root mean squares of one gradient of one run, which itself need not be kept.

    Attributes:
        own: that of the gradient.
        exact: that of the exact gradient.
        off_exact: that of its difference from the exact gradient.
        off_sent: that of its difference from what was sent.
    """

    own: float
    exact: float
    off_exact: float
    off_sent: float


def run_sizes(share: GradientShare, truth: Gradients, run: Gradients) -> Mapping[str, RunSizes]:
    """Return the sizes of every gradient of a run, beside the exact ones and what was sent."""
    return {
        name: RunSizes(
            float(root_mean_square(run[name])),
            float(root_mean_square(truth[name])),
            float(root_mean_square(run[name] - truth[name])),
            float(root_mean_square(share[name].double() - run[name])),
        )
        for name in truth
    }
