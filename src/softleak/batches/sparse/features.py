"""Recover the labels and features of a batch whose features come from a ReLU.

The head's gradient is ``G = Σ_i δ'_i x_iᵀ``, and the features ``x_i`` are the sparse vectors of its
row space. Their scales follow from the bias's gradient of the layer before, which is
``Σ_i (Wᵀ δ'_i) ∘ [x_i > 0]``: linear in the inverse scales, with an equation for every feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.batches.space import GradientSpace
from softleak.batches.sparse.directions import sparse_directions
from softleak.batches.sparse.labels import (
    VERDICT_BOUNDS,
    VERDICT_MISFIT,
    disagreements,
    judged,
    outside_simplex,
    status_of,
    weigh,
)
from softleak.batches.sparse.layer import FullyConnectedTail, layers_before_head
from softleak.core.factors import SMALLEST_NORMAL
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.resimulation import Resimulation, resimulate

NEAR_ZERO = 32.0  # a feature within this many of its standard errors may be zero or not
MOST_SWITCHED = 8  # units whose state the bias may decide; more would be no coincidence


@dataclass(frozen=True, eq=False)
class FeatureFit:
    """Features and differences, and how well their scales explain a bias."""

    features: Tensor  # (B, I)
    delta: Tensor  # (B, C) each sample's part ``δ'`` of the mean of ``p − y``
    behind: Tensor  # the gradient (B, I) before the ReLU, sample by sample
    scales: Tensor  # the inverse scales (B,), which have to be positive
    misfit: float  # what is left of the bias's gradient, in standard errors


@dataclass(frozen=True, eq=False)
class FeatureProblem:
    """The equations: the head's gradient ``R Vᵀ`` (I, C), zeros and a bias's gradient."""

    head: Head
    space: GradientSpace  # of the transposed gradient of the head
    zeros: Tensor  # where each sample's feature is zero, (B, I)
    bias: Tensor  # the gradient (I,) of the bias of the layer before
    relative: float  # the rounding of the bias's terms
    noise: float  # whatever else is on each entry of it

    @classmethod
    def of(
        cls, subject: Subject, share: GradientShare, space: GradientSpace, zeros: Tensor,
        before: str,
    ) -> FeatureProblem:  # fmt: skip
        """Gather the equations of a share, ``before`` being the name of the layer before."""
        name = f"{before}.bias"
        relative = share.resolution(name, subject.head.dtype)
        return cls(subject.head, space, zeros, share[name].double(), relative, share.noise(name))

    def moved(self, generator: torch.Generator) -> FeatureProblem:
        """Return the equations with every gradient moved by its own error, at random."""
        R, errors = self.space.R, self.space.errors
        moves = torch.randn(R.shape, generator=generator, dtype=torch.double).to(R)
        space = replace(self.space, R=R + errors[:, None] * moves)
        shift = torch.randn(self.bias.shape, generator=generator, dtype=torch.double).to(R)
        size = self.relative * (self.bias.abs() + self.bias.square().mean().sqrt()) + self.noise
        return replace(self, space=space, bias=self.bias + size * shift)

    def solve(self) -> FeatureFit:
        """Return the features that vanish at the zeros, and the scales that explain the bias."""
        R, errors = self.space.R, self.space.errors
        unit = torch.stack([self._feature(zeros) for zeros in self.zeros])
        unit = unit * torch.where(unit.sum(1) < 0, -1.0, 1.0)[:, None]
        solved = torch.linalg.lstsq((unit / errors).T, R / errors[:, None]).solution
        delta = solved @ self.space.V.T  # (B, C), each at the inverse scale of its feature
        back = self.head.back(delta)
        behind = torch.where(self.zeros, 0.0, back)
        weights = 1 / self._bias_errors(unit, behind)
        scales, left = self._scales(behind, weights)
        # A feature within its error of zero may have been on: its part of the bias tells.
        behind = _switched(behind, back, left / weights, scales, self.near_zero(unit))
        scales, left = self._scales(behind, weights)
        misfit = left.square().sum().div(max(len(left) - len(unit), 1)).sqrt()
        features = unit / torch.where(scales == 0, SMALLEST_NORMAL, scales)
        return FeatureFit(features, delta * scales, behind * scales, scales[:, 0], float(misfit))

    def near_zero(self, unit: Tensor) -> Tensor:
        """Return which features (B, I) are zero within their errors."""
        return unit.abs() <= NEAR_ZERO * self.space.errors

    def _scales(self, behind: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverse scales (B, 1), and what they leave of the bias, in errors (I,)."""
        kept = weights
        for _ in range(3):  # units in the wrong state are outliers, and left out of the next fit
            solved = torch.linalg.lstsq((behind * kept).T, (self.bias * kept)[:, None]).solution
            left = (solved[:, 0] @ behind - self.bias) * weights
            kept = weights * (left.abs() <= 8 * left.abs().median().clamp_min(1))
        return solved, left

    def _feature(self, zeros: Tensor) -> Tensor:
        """Return the vector (I,) of the space that vanishes at these entries, up to its scale."""
        rows = self.space.R[zeros] / self.space.errors[zeros, None]
        vector = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
        return torch.where(zeros, 0.0, self.space.R @ vector)

    def _bias_errors(self, unit: Tensor, behind: Tensor) -> Tensor:
        """Return the standard errors (I,) of the bias's equations, up to scales of about one."""
        spread = torch.linalg.pinv((unit / self.space.errors).T).norm(dim=1)
        rows = self.head.W.double().norm(dim=0)
        # First scales, without weights, say how large each sample's terms are.
        scales = torch.linalg.lstsq(behind.T, self.bias[:, None]).solution.abs()
        carried = ((spread[:, None] * scales * rows) * ~self.zeros).norm(dim=0)
        terms = (behind.abs() * scales).sum(0) + self.bias.square().mean().sqrt()
        errors = carried.hypot(self.relative * terms) + self.noise
        return torch.clamp_min(errors, SMALLEST_NORMAL)


def _switched(behind: Tensor, back: Tensor, left: Tensor, scales: Tensor, near: Tensor) -> Tensor:
    """Return ``behind`` (B, I) with those few units switched that explain what is left (I,)."""
    worst = left.abs().topk(min(MOST_SWITCHED, len(left))).indices
    out = behind.clone()
    for j in worst:
        change = torch.where(behind[:, j] == 0, back[:, j], -behind[:, j]) * scales[:, 0]
        after = torch.where(near[:, j], (left[j] + change).abs(), torch.inf)
        i = int(after.argmin())
        if float(after[i]) < 0.01 * float(left[j].abs()):
            out[i, j] = back[i, j] if behind[i, j] == 0 else 0.0
    return out


OFF_ERRORS = 8.0  # an input of this many standard errors or less is that of a unit that was off


class TailInputs(NamedTuple):
    """What entered the fully connected tail of a network."""

    layers: tuple[str, ...]  # from the one that reads it to the one before the head
    inputs: Tensor  # (B, n) what that layer read
    errors: Tensor  # (B, 1) their standard errors


def resimulate_tail(
    subject: Subject, share: GradientShare, problem: FeatureProblem, fit: FeatureFit, labels: Tensor
) -> Resimulation | None:
    """Compare every gradient of the fully connected tail with what the client would send."""
    found = tail_inputs(subject, share, problem, fit)
    if found is None:
        return None
    tail = FullyConnectedTail(subject, found.layers)
    own = Subject.of(tail, (found.inputs.shape[1],), head=subject.head)
    return resimulate(own, share, found.inputs, labels, errors=found.errors)


def tail_inputs(
    subject: Subject, share: GradientShare, problem: FeatureProblem, fit: FeatureFit
) -> TailInputs | None:
    """Return what the deepest layer read whose inputs the share tells."""
    generator = torch.Generator().manual_seed(0)
    D, moved = fit.behind, problem.moved(generator).solve().behind
    found: TailInputs | None = None
    layers: Sequence[str] = subject.once(layers_before_head)
    for number, name in enumerate(layers):
        if f"{name}.weight" not in share:
            break
        G = share[f"{name}.weight"].double()
        Z = _inputs(D, G)
        relative = share.resolution(f"{name}.weight", G.dtype)
        noise = relative * G.abs() + share.noise(f"{name}.weight")
        other = _inputs(moved, G + noise * torch.randn(G.shape, generator=generator).to(G))
        errors = (other - Z).square().mean(1, keepdim=True).sqrt()
        found = TailInputs(tuple(reversed(layers[: number + 1])), Z, errors)
        W = subject.parameters[f"{name}.weight"].detach().double()
        off = Z.abs() <= OFF_ERRORS * errors
        D, moved = (torch.where(off, 0.0, each @ W) for each in (D, moved))
    return found


def _inputs(D: Tensor, G: Tensor) -> Tensor:
    """Return the inputs (B, n) whose products with ``D`` (B, m) come nearest to ``G`` (m, n)."""
    nearest: Tensor = torch.linalg.lstsq(D.T, G).solution
    return nearest


MOVED_RUNS = 4  # solutions of equations moved by their own errors
MOVED_SEED = 0  # their seed


def judge_features(
    subject: Subject, share: GradientShare, knowledge: Knowledge, problem: FeatureProblem,
    size: int | None,
) -> BatchRecovery:  # fmt: skip
    """Return labels and features with what is proved of them."""
    generator = torch.Generator().manual_seed(MOVED_SEED)
    fit = problem.solve()
    moved = [problem.moved(generator).solve() for _ in range(MOVED_RUNS)]
    p = _prediction(problem, fit)
    rounding = _rounding(problem, fit)
    off = _largest([(run.delta - fit.delta).abs().amax(1) for run in moved])
    weighing = weigh(p, fit.delta, off, size, knowledge.scale == "known")
    labels = p - fit.delta / weighing.weight
    others = [_prediction(problem, run) - run.delta / weighing.weight for run in moved]
    known = _largest([(other - labels).abs().sum(1) for other in others]) + rounding
    errors = known + weighing.errors
    size_of = fit.features.norm(dim=1)
    feature_errors = _largest([(m.features - fit.features).norm(dim=1) / size_of for m in moved])
    problems = list(_problems(problem, fit, labels, known))
    if not problems:
        simulated = resimulate_tail(subject, share, problem, fit, labels)
        problems += [] if simulated is None else disagreements(simulated)
    samples = judged(
        labels, fit.features, errors, feature_errors.tolist(), not problems, knowledge.tolerance,
        "feature",
    )  # fmt: skip
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    said = (
        f"The features of {len(labels)} samples were found by their zeros.",
        f"The labels of {proved} of them are proved.",
    )
    message = " ".join([*said, *problems, *filter(None, [weighing.why])])
    return BatchRecovery(status_of(samples), message, size or len(labels), samples)


def _largest(differences: list[Tensor]) -> Tensor:
    return VERDICT_BOUNDS * torch.stack(differences).amax(0)


def _prediction(problem: FeatureProblem, fit: FeatureFit) -> Tensor:
    """Return ``softmax(W x + b)`` (B, C) of the features."""
    return (problem.head.logits(fit.features) + problem.head.b).softmax(1)


def _rounding(problem: FeatureProblem, fit: FeatureFit) -> Tensor:
    """Return a bound (B,) of what the client's rounding does to ``p`` and to the label, in L1.

    An error e of every logit moves ``p`` by 2 e at most, and by no more than twice what is not of
    the largest class while that one is e lower and the others are e higher.
    """
    head = problem.head
    terms = fit.features.abs() @ head.W.double().abs().T + head.b.abs()
    e = problem.relative * terms.amax(1, keepdim=True)
    z = head.logits(fit.features) + head.b
    largest = torch.zeros_like(z).scatter_(1, z.argmax(1, keepdim=True), 1.0)
    rest = 1 - ((z + e * (1 - 2 * largest)).softmax(1) * largest).sum(1)
    return (2 * e[:, 0]).minimum(2 * rest) + VERDICT_BOUNDS * problem.relative


def _problems(
    problem: FeatureProblem, fit: FeatureFit, labels: Tensor, errors: Tensor
) -> Iterator[str]:
    """Yield what speaks against the samples, as sentences."""
    allowed = 8 * fit.scales.reciprocal().abs()[:, None] * problem.space.errors
    if bool((fit.features < -allowed).any()) or bool((fit.scales <= 0).any()):
        yield "A feature has negative entries, as no ReLU gives."
    if not fit.misfit <= VERDICT_MISFIT:
        yield (
            f"The scales leave {fit.misfit:.3g} standard errors of the gradient of the bias before "
            "the head."
        )
    yield from outside_simplex(labels, errors)


def recover_by_features(
    subject: Subject, share: GradientShare, knowledge: Knowledge, size: int | None = None
) -> BatchRecovery | None:
    """Recover label and feature of every sample from the last two layers, where those allow it."""
    head, layers = subject.head, subject.once(layers_before_head)
    size = knowledge.samples if size is None else size
    if not layers or knowledge.head_only or head.weight_name not in share:
        return None
    before = layers[0]
    if f"{before}.bias" not in share:
        return None
    G = share[head.weight_name].double()
    relative = share.resolution(head.weight_name, head.dtype)
    noise = math.hypot(share.noise(head.weight_name), knowledge.noise)
    space = GradientSpace.of(G.T.contiguous(), relative, noise)
    if not 0 < space.rank < min(head.classes - 1, len(G.T)):
        return None  # the rank of so few classes does not tell how many samples there are
    found = sparse_directions(space.R, space.errors)
    if len(found) != space.rank:
        message = (
            f"At least {space.rank} samples are behind the share. The features of {len(found)} "
            "were found by their zeros, and scales need all of them: this attack did not succeed, "
            "which does not mean that the batch is hidden."
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    problem = FeatureProblem.of(subject, share, space, found.zeros, before)
    return judge_features(subject, share, knowledge.of(share), problem, size)
