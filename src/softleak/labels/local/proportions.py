"""Estimate class proportions behind the update of many samples, with intervals.

The client is run on stand-ins for its data: images and labels that the caller passes in, or noise.
A regression from these updates to the proportions behind them reads the real update, and what it
misses on runs that it was not fitted to is the width of the intervals.

Counting classes takes an update that is one step. A neuron between a layer ``W`` with bias ``b``
and the head ``V`` that multiplies through (a ReLU, with or without pooling) has, for any sample and
at any one set of weights,

    Σ_k V_kj ∂L/∂V_kj = Σ_m W_jm ∂L/∂W_jm + b_j ∂L/∂b_j.

Steps that follow are taken at other weights and break it: an update Δ of several steps is off by
the products of their gradients, which are of the size of ``‖ΔV_j‖² − ‖ΔW_j‖² − Δb_j²``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.client import Client, as_gradient
from softleak.core.errors import DataError
from softleak.core.forward import forward_batch, random_tensor
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader, entry_error, whole_counts
from softleak.labels.noisy.spectrum import features_of

RUNS = 60  # clients that are simulated
LEVEL = 0.9  # the probability that an interval holds its entry
SKEW = (0.1, 10.0)  # Dirichlet parameters of simulated clients, from … to
RIDGE = 1e-2  # of the mean square: how far the regression is held back
FLOOR = 0.02  # proportions below this are known as well as one of this size
TOGETHER = 64  # stand-ins whose features are computed in one batch
DOUBT = 1e-2  # of the features' mean square: how far their direction is held back
SEED = 0  # the seed of the simulated clients


@dataclass(frozen=True, eq=False)
class StandIns:
    """Images (M, …) with their classes (M,) that stand in for a client's data."""

    images: Tensor
    classes: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.classes) or not len(self.images):
            raise DataError(
                f"expected as many classes as images, got {len(self.images)} images and "
                f"{len(self.classes)} classes"
            )


@dataclass(frozen=True, eq=False)
class Proportions:
    """How large a part of a client's data each class is estimated to be."""

    mean: Tensor  # the estimate (C,), which sums to one
    interval: Tensor  # (2, C), at 90 % for each entry of clients whose data are like the stand-ins
    message: str  # what the intervals rest on


@dataclass(frozen=True, eq=False)
class ProportionReader:
    """Read proportions off updates of one client's settings and number of samples."""

    subject: Subject
    samples: int
    along: Tensor | None  # (I,) usual features have length one along it; None: nothing is known
    weights: Tensor  # (C + 1, C) from the update's statistic and one to proportions
    spread: float  # the interval's half width, in units of the root of a proportion
    on_noise: bool

    @classmethod
    def of(
        cls, subject: Subject, client: Client, samples: int, stand_ins: StandIns | None = None,
        runs: int = RUNS,
    ) -> ProportionReader:  # fmt: skip
        """Run the client on stand-ins, images with their classes or by default noise, and fit."""
        random = np.random.default_rng(SEED)
        generator = torch.Generator().manual_seed(SEED)
        along = _like_a_bias(subject, stand_ins, runs * samples, generator)
        seen, parts = [], []
        for _ in range(runs):
            counts = draw_counts(random, subject.head.classes, samples)
            x, y = draw_client(subject, counts, stand_ins, generator)
            seen.append(statistic(subject, client.share(subject.model, x, y), along))
            parts.append(counts / samples)
        s, part = F.pad(torch.stack(seen), (0, 1), value=1.0), torch.stack(parts).double()
        weights, missed = _fit(s, part, samples)
        return cls(subject, samples, along, weights, missed, stand_ins is None)

    def read(self, share: GradientShare) -> Proportions:
        seen = F.pad(statistic(self.subject, share, self.along)[None], (0, 1), value=1.0)
        mean = _whole(seen @ self.weights, self.samples)[0]
        half = self.spread * mean.clamp_min(FLOOR).sqrt()
        interval = torch.stack([mean - half, mean + half]).clamp(0, 1)
        basis = "noise, of which real images may differ" if self.on_noise else "the images given"
        words = f"an estimate: intervals were measured on clients simulated with {basis}"
        return Proportions(mean, interval, words)


def statistic(subject: Subject, share: GradientShare, along: Tensor | None) -> Tensor:
    """Return (C,) the mean of ``p − y`` over all steps, as far as the head's update tells."""
    gradient = as_gradient(subject, share)
    head = subject.head
    if head.has_bias and head.bias_name in gradient:
        return gradient[head.bias_name].double()
    G = gradient[head.weight_name].double()
    return G.sum(1) if along is None else G @ along


def _like_a_bias(
    subject: Subject, stand_ins: StandIns | None, most: int, generator: torch.Generator
) -> Tensor | None:
    """Return a direction (I,) along which features of stand-ins, at most ``most``, have length one.

    An image counts in the head's gradient as much as its feature is long along the direction that
    is read. Least squares find the one along which these lengths differ least. With noise for
    images it is that of the mean: noise would say more of itself than of real images.
    """
    if stand_ins is None:
        return subject.once(BatchReader.of).like_a_bias
    chosen = torch.randperm(len(stand_ins.images), generator=generator)[:most]
    parts = torch.split(stand_ins.images[chosen], TOGETHER)
    x = torch.cat([features_of(subject, list(part)) for part in parts])
    normal = x.T @ x / len(x)
    held = DOUBT * normal.diagonal().mean() * torch.eye(len(normal)).to(normal)
    return torch.linalg.solve(normal + held, x.mean(0)) if bool(held.any()) else None


def _whole(raw: Tensor, samples: int) -> Tensor:
    """Return parts (N, C) that are whole numbers of samples nearest to estimates and sum to one."""
    kept = raw.double().clamp_min(torch.finfo(raw.dtype).eps)
    counts = [whole_counts(row, torch.zeros_like(row), samples) for row in kept]
    return torch.stack(counts).double() / samples


def _fit(s: Tensor, part: Tensor, samples: int) -> tuple[Tensor, float]:
    """Return the ridge regression, and the quantile of what it misses of a run left out."""
    normal = s.T @ s
    held = RIDGE * torch.diag(normal.diagonal())
    inverse = torch.linalg.inv(normal + held)
    weights = inverse @ s.T @ part
    leverage = ((s @ inverse) * s).sum(1, keepdim=True).clamp_max(0.99)
    left_out = (part - s @ weights) / (1 - leverage)  # as if each run had been left out of its fit
    guess = _whole(part - left_out, samples)
    missed = (part - guess).abs() / guess.clamp_min(FLOOR).sqrt()
    level = min(LEVEL * (1 + 1 / part.numel()), 1.0)
    return weights, float(torch.quantile(missed.flatten(), level))


def draw_counts(random: np.random.Generator, classes: int, samples: int) -> Tensor:
    """Return how many samples (C,) of each class a client of random skew has."""
    low, high = np.log(SKEW)
    part = random.dirichlet([float(np.exp(random.uniform(low, high)))] * classes)
    return torch.from_numpy(random.multinomial(samples, part))


def draw_client(
    subject: Subject, counts: Tensor, stand_ins: StandIns | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return inputs (N, …) and classes (N,) of a simulated client, in random order."""
    y = torch.repeat_interleave(torch.arange(len(counts)), counts)
    y = y[torch.randperm(len(y), generator=generator)]
    if stand_ins is None:
        return torch.randn(len(y), *subject.expected_tensor_shape, generator=generator), y
    chosen = torch.zeros(len(y), dtype=torch.long)
    for one in counts.nonzero()[:, 0].tolist():
        own = (stand_ins.classes == one).nonzero()[:, 0]
        if not len(own):
            raise DataError(f"the stand-ins hold no image of class {one}; pass some of each class")
        mine = (y == one).nonzero()[:, 0]
        chosen[mine] = own[torch.randint(len(own), (len(mine),), generator=generator)]
    return stand_ins.images[chosen], y


ONE_STEP_TEST_HOLDS = 1e-3  # relative: what float32 may leave where a model obeys the equation
ONE_STEP_TEST_SEEN = 0.1  # the part of a second step's products that has to stand out of rounding
ONE_STEP_TEST_ROUNDINGS = 2.0  # of an entry at most, adding up as independent ones do
ONE_STEP_TEST_SAMPLES = 4  # random samples that the equation is tried on


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
            found, weight = cls(head, name), parameters.get(f"{name}.weight")
            if name == head.name or weight is None or weight.dim() < 2:
                continue
            if head.W.shape[1] % len(weight):
                continue
            out, into = found._sums(parameters, gradients)
            size = float(out.norm() + into.norm())
            if size > 0 and float((out - into).norm()) <= ONE_STEP_TEST_HOLDS * size:
                return found
        return None

    def check(self, share: GradientShare, parameters: Mapping[str, Tensor], lr: float) -> OneStep:
        """Return whether the share, times the rate ``lr``, is one step from ``parameters``."""
        if any(name not in share for name in self._names(parameters)):
            return OneStep(False, "not all gradients that would show it were sent")
        parameters = {n: p.detach() for n, p in parameters.items()}
        error = self._rounding(parameters, share)
        out, into = self._sums(parameters, share)
        if bool(((out - into).abs() > error).any()):
            return OneStep(False, "it is not one plain step: there were more, or weight decay")
        out, into = self._sums(share, share)
        second = lr * (out - into) / 2  # were it two equal steps
        if float(second.norm()) * ONE_STEP_TEST_SEEN < float(error.norm()):
            return OneStep(False, "rounding would hide a second step")
        return OneStep(True, "it is one step from the weights sent")

    def _names(self, parameters: Mapping[str, Tensor]) -> list[str]:
        mine = [f"{self.layer}.weight", f"{self.layer}.bias"]
        return [self.head.weight_name, *(name for name in mine if name in parameters)]

    def _rounding(self, parameters: Mapping[str, Tensor], share: GradientShare) -> Tensor:
        """Return (J,) what rounding may leave of the equation."""
        weights = {n: parameters[n].double() for n in self._names(parameters)}
        errors = {
            n: torch.full_like(w, entry_error(share, n, parameters[n].dtype) ** 2)
            for n, w in weights.items()
        }
        sizes = self._sums({n: w.square() for n, w in weights.items()}, errors)
        return ONE_STEP_TEST_ROUNDINGS * torch.stack(sizes).sum(0).sqrt()

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


def _of_noise(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the gradient of a batch of noise, as training would have it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([random_tensor(shape, i, generator) for i in range(ONE_STEP_TEST_SAMPLES)])
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.random.fork_rng([]), torch.enable_grad():
        z = forward_batch(model, x)
        loss = F.cross_entropy(z, torch.arange(ONE_STEP_TEST_SAMPLES) % z.shape[-1])
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g
            for (n, p), g in zip(named.items(), found, strict=True)}  # fmt: skip
