"""Run the client on an answer, and compare every layer with what it sent, in units of rounding.

The share of the true batch differs from an exact simulation by the client's own rounding. How large
that is, is not guessed: the same batch is simulated in the client's precision a few times, its
inputs moved by a rounding each, and compared with the simulation in float64. Whatever rounding does
on its way through the layers, sums over the batch and over positions included, is in that
difference. The unit of a layer is the median over the runs of its root mean square.

A unit of a ReLU or of a pooling whose two branches lie within rounding may have switched at the
client. The gradient then jumps. So the share may agree with any of the runs, each of which is the
client at inputs a few roundings away.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import ModelError, SoftleakError
from softleak.core.input_spec import Inputs
from softleak.core.loss import NextToken
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.numerics.least_squares import TINY

Gradients = Mapping[str, Tensor]


def own_copy(subject: Subject) -> nn.Module:
    """Return a copy of the model with the gradients of all its parameters switched on."""
    try:
        copied = copy.deepcopy(subject.model)
    except Exception as error:  # a stranger's model may hold anything
        raise ModelError(f"the model cannot be copied to simulate the client: {error}") from error
    for parameter in copied.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return copied


def exact_copy(subject: Subject) -> nn.Module:
    """Return such a copy in float64."""
    return own_copy(subject).double()


def simulated(
    model: nn.Module, inputs: Inputs, labels: Tensor | None, share: GradientShare,
    scale: float = 1.0,
) -> Gradients:  # fmt: skip
    """Return in float64 what the client sends for labels (B, C), or for texts without any."""
    if labels is None:
        sent = capture(model, inputs, loss=NextToken())
        return {n: g.double() * scale for n, g in sent.items() if n in share}
    y = labels.detach().clamp_min(0)
    sent = capture(model, inputs, y / y.sum(-1, keepdim=True))
    return {n: g.double() * scale for n, g in sent.items() if n in share}


def relative_misfit(
    model: nn.Module, share: GradientShare, inputs: Inputs, labels: Tensor | None
) -> float:
    """Return what one run on an answer leaves of a share, at any scale; infinite if it fails."""
    try:
        made = simulated(model, inputs, labels, share)
    except SoftleakError:
        return math.inf
    ours = torch.cat([made[name].flatten() for name in share if name in made])
    sent = torch.cat([share[name].double().flatten() for name in share if name in made])
    scale = float(ours @ sent) / max(float(ours @ ours), 1e-300)
    return float((sent - scale * ours).norm()) / max(float(sent.norm()), 1e-300)


def root_mean_square(x: Tensor) -> float:
    """Return the root of the mean square of all entries, zero if there is none."""
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


class RunSizes(NamedTuple):
    """Root mean squares of one gradient of one run, which itself need not be kept."""

    own: float  # that of the gradient
    exact: float  # that of the exact gradient
    off_exact: float  # that of its difference from the exact gradient
    off_sent: float  # that of its difference from what was sent


def run_sizes(share: GradientShare, truth: Gradients, run: Gradients) -> Mapping[str, RunSizes]:
    """Return the sizes of every gradient of a run, beside the exact ones and what was sent."""
    return {
        name: RunSizes(
            root_mean_square(run[name]),
            root_mean_square(exact),
            root_mean_square(run[name] - exact),
            root_mean_square(share[name].double() - run[name]),
        )
        for name, exact in truth.items()
    }


RUNS = 5  # simulations in the client's precision, from which the unit of rounding is taken
MORE_RUNS = 8  # further ones, if the share agrees with none of the first
# The factor by which the movements of these grow; the client may have rounded further where a unit
# is near its kink.
GROWTH = 1.3
# How many units a gradient may be off. A sum of n terms one after another has an error of about
# √(n/3) roundings, in blocks about √(log₂ n): the order of summation, which is the machine's, is a
# factor of about 10 for a few thousand terms, and three standard deviations of the unit's own
# estimate make it 32.
TOLERANCE = 32.0
COARSEST = 0.1  # a layer is silent if an error of this part of its gradient would not be noticed
SEED = 0  # the seed of the movements of the inputs


@dataclass(frozen=True)
class LayerFit:
    """How well one gradient of the share was reproduced."""

    name: str  # the parameter
    misfit: float  # the root mean square of the difference, in units of rounding
    rounding: float  # that unit, relative to the root mean square of the gradient

    @property
    def speaks(self) -> bool:
        """Return whether a wrong batch could be told from rounding by this gradient."""
        return self.rounding * TOLERANCE < COARSEST

    @property
    def agrees(self) -> bool:
        """Return whether rounding explains the difference."""
        return self.misfit <= TOLERANCE


@dataclass(frozen=True)
class Resimulation:
    """Compare a share with what the client would send for the recovered batch."""

    # One fit for each gradient that the share and the simulation both hold.
    layers: tuple[LayerFit, ...] = ()
    problem: str = ""  # why the client could not be simulated, if it could not

    @property
    def agree(self) -> bool:
        """Return whether rounding explains every gradient, and at least one could have told."""
        speaking = any(layer.speaks for layer in self.layers)
        return speaking and all(layer.agrees for layer in self.layers)

    @property
    def worst(self) -> LayerFit | None:
        """Return the gradient that fits worst, in units of rounding."""
        return max(self.layers, key=lambda layer: layer.misfit, default=None)

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the parameters whose gradients are so small that rounding hides them."""
        return tuple(layer.name for layer in self.layers if not layer.speaks)


def resimulate(
    subject: Subject,
    share: GradientShare,
    inputs: Tensor,
    labels: Tensor,
    scale: float = 1.0,
    errors: Tensor | None = None,
) -> Resimulation:
    """Compare every gradient of a share with the client's on a recovered batch.

    Labels (B, C) are brought into the simplex first. What ``errors``, the standard errors of the
    inputs (B, …), do to the gradients counts as rounding. A model that cannot be run agrees with
    nothing.
    """
    generator = torch.Generator().manual_seed(SEED)
    inputs = inputs.detach().double()
    labels = labels.detach().double()
    try:
        own, exact = subject.once(own_copy), subject.once(exact_copy)
        truth = simulated(exact, inputs, labels, share, scale)
        rounding = torch.finfo(next(own.parameters()).dtype).eps * inputs.abs()
        errors = rounding if errors is None else rounding.maximum(errors)

        def moved(far: float = 1.0) -> Mapping[str, RunSizes]:
            moves = torch.randn(inputs.shape, generator=generator, dtype=torch.double)
            x = inputs + far * errors * moves.to(inputs.device)
            return run_sizes(share, truth, simulated(own, x, labels, share, scale))

        runs = [moved() for _ in range(RUNS)]
        units = {name: _unit(name, [run[name] for run in runs], share, own) for name in truth}
        first = (run_sizes(share, truth, truth), *runs)
        best = min((_fits(run, units) for run in first), key=_worst)
        for number in range(MORE_RUNS):
            if best.agree or not best.layers:
                break
            run = moved(GROWTH ** (number + 1))
            best = min(best, _fits(run, units), key=_worst)
    except SoftleakError as error:
        return Resimulation(problem=str(error))
    return best


def resimulate_texts(subject: Subject, share: GradientShare, inputs: Inputs) -> Resimulation:
    """Compare gradients, at any scale, with those of texts (B, L), by one run's own rounding."""
    try:
        own, exact = subject.once(own_copy), subject.once(exact_copy)
        truth, run = (simulated(model, inputs, None, share) for model in (exact, own))
    except SoftleakError as error:
        return Resimulation(problem=str(error))
    size = sum(float(g.square().sum()) for g in truth.values())
    scale = sum(float((share[n].double() * g).sum()) for n, g in truth.items()) / max(size, TINY)
    truth, run = ({n: g * scale for n, g in made.items()} for made in (truth, run))
    sizes = run_sizes(share, truth, run)
    units = {name: _unit(name, [one], share, own) for name, one in sizes.items()}
    return min((_fits(one, units) for one in (run_sizes(share, truth, truth), sizes)), key=_worst)


def _unit(name: str, runs: list[RunSizes], share: GradientShare, own: nn.Module) -> float:
    """Return the root mean square that rounding and noise leave of a gradient's difference."""
    computed_in = next(own.parameters()).dtype
    # The client may have computed more coarsely than the model's dtype; rounding grows alike.
    coarser = share.resolution(name, computed_in) / (torch.finfo(computed_in).eps / 2)
    computing = coarser if share.precision is not None else 1.0
    sent = torch.finfo(share[name].dtype).eps / 2 * runs[0].exact
    return math.hypot(computing * median(run.off_exact for run in runs), sent, share.noise(name))


def _fits(run: Mapping[str, RunSizes], units: Mapping[str, float]) -> Resimulation:
    layers = []
    for name, sizes in run.items():
        unit = units[name]
        misfit = sizes.off_sent / unit if unit else (math.inf if sizes.off_sent else 0.0)
        layers.append(LayerFit(name, misfit, unit / sizes.own if sizes.own else math.inf))
    return Resimulation(tuple(layers))


def _worst(resimulation: Resimulation) -> float:
    return math.inf if resimulation.worst is None else resimulation.worst.misfit
