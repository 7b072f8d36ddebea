"""Recover the samples of a batch from its first layer, or from its last two layers, with ReLUs.

The head's gradient is ``G = Σ_i δ'_i x_iᵀ``, and the features ``x_i`` are the sparse vectors of its
row space. Their scales follow from the bias's gradient of the layer before, which is
``Σ_i (Wᵀ δ'_i) ∘ [x_i > 0]``: linear in the inverse scales, with an equation for every feature.

Inputs never change while weights do. Less its weight decay, the update of the first layer is
``Σ_k w_k D_kᵀ X = Dᵀ X``, where each sample's row of ``D`` is zero at the units that were off in
all of its steps: the sparse vectors that lead to the inputs of one step lead to these as well. Only
the labels do not follow, because the rows of ``D`` are sums over weights that moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.batches.sparse.directions import Directions, sparse_directions
from softleak.batches.sparse.layer import (
    VERDICT_BOUNDS,
    VERDICT_MISFIT,
    Differences,
    FullyConnectedTail,
    Inputs,
    differences,
    disagreements,
    first_layer,
    is_homogeneous,
    judge,
    layers_before_head,
    outside_simplex,
    run_through,
    status_of,
    verdict,
    weigh,
)
from softleak.batches.systems import GradientSpace
from softleak.core.client import SgdSteps, mean_gradient
from softleak.core.factors import SMALLEST_NORMAL
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.recover import recover
from softleak.resimulation import exact_copy, resimulate

NEAR_ZERO = 32.0  # a feature within this many of its standard errors may be zero or not
MOST_SWITCHED = 8  # units whose state the bias may decide; more would be no coincidence


class FeatureFit(NamedTuple):
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
        near = unit.abs() <= NEAR_ZERO * self.space.errors
        behind = _switched(behind, back, left / weights, scales, near)
        scales, left = self._scales(behind, weights)
        misfit = left.square().sum().div(max(len(left) - len(unit), 1)).sqrt()
        features = unit / torch.where(scales == 0, SMALLEST_NORMAL, scales)
        return FeatureFit(features, delta * scales, behind * scales, scales[:, 0], float(misfit))

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
        Z = torch.linalg.lstsq(D.T, G).solution
        relative = share.resolution(f"{name}.weight", G.dtype)
        noise = relative * G.abs() + share.noise(f"{name}.weight")
        again = G + noise * torch.randn(G.shape, generator=generator).to(G)
        other = torch.linalg.lstsq(moved.T, again).solution
        errors = (other - Z).square().mean(1, keepdim=True).sqrt()
        found = TailInputs(tuple(reversed(layers[: number + 1])), Z, errors)
        W = subject.parameters[f"{name}.weight"].detach().double()
        off = Z.abs() <= OFF_ERRORS * errors
        D, moved = (torch.where(off, 0.0, each @ W) for each in (D, moved))
    return found


MOVED_RUNS = 4  # solutions of equations moved by their own errors


def judge_features(
    subject: Subject, share: GradientShare, knowledge: Knowledge, problem: FeatureProblem
) -> BatchRecovery:
    """Return labels and features with what is proved of them."""
    generator = torch.Generator().manual_seed(0)
    fit = problem.solve()
    moved = [problem.moved(generator).solve() for _ in range(MOVED_RUNS)]
    p = _prediction(problem, fit)
    rounding = _rounding(problem, fit)
    off = _largest([(run.delta - fit.delta).abs().amax(1) for run in moved])
    weighing = weigh(p, fit.delta, off, knowledge)
    labels = p - fit.delta / weighing.weight
    others = [_prediction(problem, run) - run.delta / weighing.weight for run in moved]
    known = _largest([(other - labels).abs().sum(1) for other in others]) + rounding
    errors = known + weighing.errors
    size_of = fit.features.norm(dim=1)
    feature_errors = _largest([(m.features - fit.features).norm(dim=1) / size_of for m in moved])
    problems = list(_problems(problem, fit, labels, known))
    tail = tail_inputs(subject, share, problem, fit) if not problems else None
    if tail is not None:
        alone = FullyConnectedTail(subject, tail.layers)
        own = Subject.of(alone, (tail.inputs.shape[1],), head=subject.head)
        simulated = resimulate(own, share, tail.inputs, labels, errors=tail.errors)
        problems += disagreements(simulated)
    spread = feature_errors.tolist()
    said = "features", "were found by their zeros"
    return verdict(labels, fit.features, errors, spread, knowledge, said, problems, weighing.why)


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
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> BatchRecovery | None:
    """Recover label and feature of every sample from the last two layers, where those allow it."""
    head, layers = subject.head, subject.once(layers_before_head)
    if not layers or knowledge.head_only or head.weight_name not in share:
        return None
    before = layers[0]
    if f"{before}.bias" not in share:
        return None
    space = _space(subject, share, head.weight_name, knowledge, turned=True)
    if not 0 < space.rank < min(head.classes - 1, len(space.R)):
        return None  # the rank of so few classes does not tell how many samples there are
    found = _directions(
        space, "features of {} were found by their zeros, and scales need all of them"
    )
    if isinstance(found, BatchRecovery):
        return found
    problem = FeatureProblem.of(subject, share, space, found.zeros, before)
    return judge_features(subject, share, knowledge.of(share), problem)


OWN_ROUNDINGS = 4.0  # what the walk through the model adds to the error of a sample's gradient


def recover_without_scale(
    subject: Subject, share: GradientShare, knowledge: Knowledge, space: GradientSpace,
    found: Directions,
) -> BatchRecovery:  # fmt: skip
    """Recover the samples whose sparse vectors were found, where no bias tells their scales."""
    rank, size = space.rank, knowledge.samples
    if not subject.once(is_homogeneous):
        message = (
            f"The inputs of {rank} samples are known up to a factor each, which the gradient of "
            "the first layer's bias would tell; the share does not hold it. Labels were not read."
        )
        return BatchRecovery(Status.AMBIGUOUS, message, size or rank)
    x, parts = _signed(subject, share, space, found)
    shares = _alone(subject, share, x, parts, rank)
    alone = replace(knowledge.of(share), head_only=True, samples=None)
    recoveries = recover(subject, shares, alone)
    features = run_through(subject.once(exact_copy), subject.head.name, x).entered.detach()
    factors = [
        x.new_tensor(0.0) if r.feature is None else r.feature.double().norm() / f.norm()
        for r, f in zip(recoveries, features, strict=True)
    ]
    x = x * torch.stack(factors).view(-1, *[1] * (x.ndim - 1))
    known = all(r.label is not None and r.feature is not None for r in recoveries)
    labels = [r.label.double() for r in recoveries if r.label is not None]
    agrees = known and resimulate(subject, share, x, torch.stack(labels)).agree
    sure = agrees and size == rank and alone.scale == "known"
    sure = sure and bool((parts.misfit <= VERDICT_MISFIT).all())
    doubted = {} if sure else {Status.UNIQUE: Status.AMBIGUOUS}
    samples = tuple(replace(one, status=doubted.get(one.status, one.status)) for one in recoveries)
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    message = _message(rank, proved, known, agrees)
    # An error of a label is one of its scale, and so of its input.
    error = max((r.error for r in samples), default=torch.inf) * float(x.abs().max())
    return BatchRecovery(
        status_of(samples), message, size or rank, samples, x if known else None,
        error if sure else torch.inf,
    )  # fmt: skip


def _signed(
    subject: Subject, share: GradientShare, space: GradientSpace, found: Directions
) -> tuple[Tensor, Differences]:
    """Return inputs (B, …) up to a positive factor, and what their gradients say of ``δ``."""
    model, name = subject.once(exact_copy), subject.once(first_layer)
    assert name is not None  # its gradient was factored
    unit = torch.where(found.zeros, 0.0, found.vectors @ space.R.T)
    weights = 1 / space.errors
    X = torch.linalg.lstsq((unit * weights).T, space.R * weights[:, None]).solution @ space.V.T
    sizes = X.square().mean(1, keepdim=True).sqrt()
    X, D = X / sizes, unit * sizes
    relative = share.resolution(f"{name}.weight", subject.head.dtype)
    own = relative * D.square().sum(1).div((D != 0).sum(1).clamp_min(1)).sqrt()
    errors = sizes * space.errors + own[:, None]
    x = X.view(-1, *subject.expected_tensor_shape)
    plus = differences(model, name, x, D, errors, relative)
    minus = differences(model, name, -x, -D, errors, relative)
    right = plus.misfit <= minus.misfit
    signs = torch.where(right, 1.0, -1.0).to(x).view(-1, *[1] * (x.ndim - 1))
    return x * signs, plus.better(minus)


def _alone(
    subject: Subject, share: GradientShare, x: Tensor, parts: Differences, size: int
) -> list[GradientShare]:
    """Return for each sample the head's gradient that it would have sent alone."""
    head = subject.head
    features = run_through(subject.once(exact_copy), head.name, x).entered.detach()
    relative = share.resolution(head.weight_name, head.dtype) if head.weight_name in share else 0.0
    out, name = [], head.weight_name
    for delta, error, feature in zip(parts.delta, parts.errors, features, strict=True):
        G = size * torch.outer(delta, feature)
        off = float(error.norm() / delta.norm()) + OWN_ROUNDINGS * relative
        rounding = off * float(G.square().mean().sqrt())
        out.append(GradientShare({name: G}, share.input_shape, {name: rounding}))
    return out


def _message(rank: int, proved: int, known: bool, agrees: bool) -> str:
    told = "Some have no label of that family, so that the client could not be simulated."
    if agrees:
        told = "The client, simulated on all samples, sends this share up to rounding."
    elif known:
        told = "The simulated client does not send this share, so that nothing is proved."
    return (
        f"{rank} samples were found by their zeros, each up to its scale: no layer has a bias. "
        f"Their labels follow one by one as from shares of one sample, if they are of the family "
        f"that was said or taken; {proved} are proved. {told}"
    )


def recover_by_inputs(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> BatchRecovery | None:
    """Recover every sample with its input by a fully connected first layer, if there is one."""
    layer = subject.once(first_layer)
    if layer is None or f"{layer}.weight" not in share or knowledge.head_only:
        return None
    space = _space(subject, share, f"{layer}.weight", knowledge)
    if not space.rank:
        return None
    found = _directions(
        space,
        "patterns of active units of {} were found, and the inputs need all of them",
    )
    if isinstance(found, BatchRecovery):
        return found
    if f"{layer}.bias" not in share:
        return recover_without_scale(subject, share, knowledge, space, found)
    inputs = inputs_of(share, layer, space, found)
    return judge(subject, share, knowledge.of(share), inputs)


def _space(
    subject: Subject, share: GradientShare, name: str, knowledge: Knowledge, turned: bool = False
) -> GradientSpace:
    """Return the space of a linear layer's gradient, or of its transpose if it is ``turned``."""
    dtype = subject.head.dtype if turned else subject.parameters[name].dtype
    relative, G = share.resolution(name, dtype), share[name].double()
    noise = math.hypot(share.noise(name), knowledge.noise)
    return GradientSpace.of(G.T.contiguous() if turned else G, relative, noise)


def _directions(space: GradientSpace, said: str) -> Directions | BatchRecovery:
    """Return the sparse vectors of all samples, or what is ``said`` of those that were found."""
    found = sparse_directions(space.R, space.errors)
    if len(found) == space.rank:
        return found
    message = (
        f"At least {space.rank} samples are behind the share. The {said.format(len(found))}. This "
        "attack did not succeed, which does not mean that the batch is hidden."
    )
    return BatchRecovery(Status.NO_SOLUTION, message, space.rank)


def inputs_of(share: GradientShare, layer: str, space: GradientSpace, found: Directions) -> Inputs:
    """Return ``D``, scaled by the gradient of the bias, and the inputs."""
    unit = found.vectors @ space.R.T  # (B, m), each row up to its scale
    bias = share[f"{layer}.bias"].double()
    # Its entries are sums over the batch, whose terms may cancel: rounding is that of the terms.
    terms = bias.abs() + bias.square().mean().sqrt() / space.R.shape[1] ** 0.5
    known = share.resolution(f"{layer}.bias", share[f"{layer}.bias"].dtype)
    errors = (known * terms).hypot(terms.new_tensor(share.noise(f"{layer}.bias")))
    errors = errors.clamp_min(SMALLEST_NORMAL)
    weighted = (unit / errors).T
    factor = torch.linalg.qr(weighted)
    along = (factor.Q.T @ (bias / errors))[:, None]
    scales = torch.linalg.solve_triangular(factor.R, along, upper=True)[:, 0]
    left = weighted @ scales - bias / errors
    misfit = float(left.square().sum().div(max(len(bias) - len(scales), 1)).sqrt())
    D = torch.where(found.zeros, 0.0, unit * scales[:, None])
    X = torch.linalg.lstsq((D / space.errors).T, (space.R / space.errors[:, None])).solution
    spread = torch.linalg.inv(factor.R).norm(dim=1) * max(misfit, 1.0) / scales.abs()
    mixing = _mixing(D, found, space, scales)
    pinv = torch.linalg.pinv((D / space.errors).T)  # (B, m): rounding of each row is one
    X = X @ space.V.T
    direct = pinv.norm(dim=1)
    largest = X.abs()
    error = direct.hypot(spread * largest.amax(1)).hypot(mixing * largest.max())
    # The client's own rounding of D: its entries are sums whose terms are about as large as D.
    own = share.resolution(f"{layer}.weight", share[f"{layer}.weight"].dtype)
    rounding = own * D.square().sum(1).div((D != 0).sum(1).clamp_min(1)).sqrt()
    row_errors = scales.abs()[:, None] * space.errors + spread[:, None] * D.abs()
    row_errors = row_errors + rounding[:, None]
    return Inputs(layer, D, row_errors, X, float(error.max()), misfit)


def _mixing(D: Tensor, found: Directions, space: GradientSpace, scales: Tensor) -> Tensor:
    """Return how much (B,) of other samples an error of each direction mixes into its own."""
    out = []
    for i, zeros in enumerate(found.zeros):
        others = torch.cat([D[:i], D[i + 1 :]])[:, zeros] / space.errors[zeros]
        if not len(others):
            out.append(D.new_zeros(()))
            continue
        covariance = torch.linalg.pinv(others @ others.T, hermitian=True)
        out.append(covariance.diagonal().clamp_min(0).sum().sqrt() * scales[i].abs())
    return torch.stack(out)


LARGEST_BIAS_MISFIT = 32.0  # what the samples' scales may leave of the bias's update, in errors


def recover_trained_batch(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> BatchRecovery:
    """Recover the inputs of all samples behind an update of local training by SGD.

    They are AMBIGUOUS: without labels the client cannot be run again. Equal samples are one.
    """
    layer = subject.once(first_layer)
    if layer is None or f"{layer}.weight" not in share or f"{layer}.bias" not in share:
        return _none("the model has no fully connected first layer with a bias and a ReLU")
    gradient = _mean(subject, share, knowledge.samples)
    if gradient is None:
        return _none("the client's steps are not SGD, or not all of its settings are known")
    space = _space(subject, gradient, f"{layer}.weight", knowledge)
    if not space.rank:
        return _none("the first layer did not move")
    found = _directions(
        space,
        "patterns of active units of {} were found, and inputs need all of them: units that "
        "switched between steps may hide the others",
    )
    if isinstance(found, BatchRecovery):
        return found
    inputs = inputs_of(gradient, layer, space, found)
    x = inputs.X.view(-1, *subject.expected_tensor_shape)
    if not inputs.misfit <= LARGEST_BIAS_MISFIT:
        message = (
            f"The directions of {space.rank} inputs were found, but their lengths leave "
            f"{inputs.misfit:.3g} standard errors of the update of the bias: another client?"
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    message = (
        f"The inputs of {space.rank} samples follow from the update of the first layer, whatever "
        "the order of the steps. Their labels were not read."
    )
    size = knowledge.samples or space.rank
    return BatchRecovery(Status.AMBIGUOUS, message, size, (), x, inputs.input_error)


def _mean(subject: Subject, share: GradientShare, samples: int | None) -> GradientShare | None:
    """Return the mean gradient of all steps of a client; its scale matters only for decay."""
    training = share.made_by
    if training is None:
        return share
    if training.epochs is not None and samples is not None:
        count = len(training.batches(samples, torch.device("cpu")))
        training = replace(training, epochs=None, steps=count)
    recipe = SgdSteps.of(training)
    # Weight decay is undone with the number of steps, which takes the number of samples.
    open_ = training.epochs is not None and training.batch_size is not None
    if recipe is None or (open_ and recipe.weight_decay):
        return None
    return mean_gradient(subject, share, recipe)


def _none(why: str) -> BatchRecovery:
    return BatchRecovery(Status.NO_SOLUTION, f"Not attempted: {why}.", 1)
