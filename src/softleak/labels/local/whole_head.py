"""This module recovers the label of one sample behind several steps of all layers, by the head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacfwd

from softleak.factors import factor
from softleak.families import AnyLabel
from softleak.knowledge import Knowledge
from softleak.labels.brackets import local_minima
from softleak.labels.certify import simplest_family
from softleak.labels.curve import spread_of
from softleak.labels.local.label_equations import LABEL_EQUATIONS
from softleak.labels.local.moving_features import MovingHead, descend, trains_bias
from softleak.labels.local.recipe import SgdSteps, mean_of_head
from softleak.labels.local.recursion import RecursionCurve
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.solve import WIDEST
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class WholeHeadSettings:
    """These settings choose where the search for a moving feature begins, and judge its end."""

    readings: int = 4  # scalars at which a feature that stays comes nearest to the family
    ways: tuple[float, ...] = (-0.2, -0.05, 0.05, 0.2)  # of its length: ways that are tried
    directions: int = 3  # directions of these ways: the last ones of the basis
    quick: int = 30  # steps of every start, on a line
    kept: int = 6  # starts that are followed further, those nearest to the update
    slow: int = 100  # steps of these
    fits: float = 4.0  # root mean square, in errors: an update that is explained is below
    error_bars: float = 4.0  # standard errors that the label's error is stated with


WHOLE_HEAD = WholeHeadSettings()


def recover_by_head(
    subject: Subject, knowledge: Knowledge, share: GradientShare, recipe: SgdSteps
) -> Recovery | None:
    """Recover the label of one sample on which all layers were trained, from the head's update.

    Returns:
        The recovery, never UNIQUE: the search is local, and no input is known that the client could
        be run on again. None if the update cannot be one sample's.
    """
    if knowledge.samples is not None and knowledge.samples > 1:
        return None
    answer = None
    families = [knowledge.family] if knowledge.family is not None else [WIDEST, AnyLabel()]
    for family in families:
        equations = MovingHead.of(subject, share, recipe, family)
        if equations is None:
            return None
        z = _starts(subject, share, recipe, equations)
        if len(z):
            answer = _answer(equations, *_followed(equations, z))
        if answer is not None and answer.label is not None:
            break
    return answer


def _starts(
    subject: Subject, share: GradientShare, recipe: SgdSteps, equations: MovingHead
) -> Tensor:
    """Return (B, C + 2 r) labels, features and ways: what the update means if features stay.

    The scalars at which the label of a feature that stays comes nearest to the family are each
    tried with several ways of the feature.
    """
    factors = factor(subject.head, [mean_of_head(subject, share, recipe)])
    pseudo = PseudoLabels.of(subject.head, factors)
    curve = RecursionCurve(pseudo, factors.sigma.square(), recipe, trains_bias(subject, share))
    where, found = curve.interval(), []
    for rows, grid in where.grids():
        y, size = curve.take(where.client[rows]).labels(grid)
        outside = y.amax(-1) >= LABEL_EQUATIONS.outside
        far = spread_of(WIDEST, y, size).masked_fill(outside, torch.inf)
        for row, left, _ in zip(*(part.tolist() for part in local_minima(far, grid)), strict=True):
            at = int((grid[row] - left).abs().argmin())
            found.append((float(far[row, at]), float(grid[row, at]), y[row, at]))
    found.sort(key=lambda one: one[0])
    direction = equations.basis @ factors.v[0].double()
    ways = _ways(equations.rank).to(direction)
    starts = []
    for _, t, y in found[: WHOLE_HEAD.readings]:
        h = float(factors.sigma[0]) / t * direction
        starts += [torch.cat([y, h, way * h.norm()]) for way in ways]
    return torch.stack(starts) if starts else direction.new_zeros(0, 1)


def _ways(rank: int) -> Tensor:
    """Return ways (M, r) of a feature, relative to its length: none, and some along each axis."""
    axes = torch.eye(rank)[-WHOLE_HEAD.directions :]
    return torch.cat([torch.zeros(1, rank), *(size * axes for size in WHOLE_HEAD.ways)])


def _followed(equations: MovingHead, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return label and features (C + K r,) of the start that leads nearest, and their length."""
    classes, rank, steps = equations.classes, equations.rank, equations.recipe.steps
    length = z[:, classes : classes + rank].norm(dim=1).clamp_min(1e-12)
    along = _progress(equations, z)
    z, size = descend(equations.on_a_line, z, along, length, iterations=WHOLE_HEAD.quick)
    near = size.nan_to_num(torch.inf).argsort()[: WHOLE_HEAD.kept]
    z, along, length = z[near], along[near], length[near]
    y, first, way = torch.split(z, [classes, rank, rank], 1)
    line = first[:, None] + along[..., None] * way[:, None]
    begin = torch.cat([y, line.reshape(-1, steps * rank)], 1)
    found, size = descend(equations.anywhere, begin, line, length, iterations=WHOLE_HEAD.slow)
    best = size.nan_to_num(torch.inf).argmin()
    return found[best], length[best]


def _progress(equations: MovingHead, z: Tensor) -> Tensor:
    """Return (B, K) the part of its way that a feature has gone before each step.

    It moves with the head's weights, and their own way is that of a feature that stays.
    """
    found = []
    for one in z:
        y, first, _ = torch.split(one, [equations.classes, equations.rank, equations.rank])
        h = equations.with_one(first)
        moved, memory, sizes = torch.zeros_like(equations.target), None, []
        for kept in equations.recipe.kept[:-1]:
            sizes.append(moved.norm())
            logits = kept * (equations.weight @ h) + equations.bias - moved @ h
            delta = torch.softmax(logits, 0) - y
            moved, memory = equations.recipe.step(moved, memory, delta[:, None] * h)
        found.append(torch.stack(sizes) / moved.norm().clamp_min(1e-300))
    return torch.stack(found)


def _answer(equations: MovingHead, z: Tensor, length: Tensor) -> Recovery:
    misfit = float(equations.misfit(z[None]))
    classes, rank, steps = equations.classes, equations.rank, equations.recipe.steps
    label, features = z[:classes], z[classes:].view(steps, rank)
    if not misfit <= WHOLE_HEAD.fits:
        return Recovery(
            Status.NO_SOLUTION,
            "no label was found whose steps give the head's update while its feature moves: the "
            f"nearest leaves {misfit:.2g} times what rounding explains",
        )
    J = jacfwd(equations.anywhere)(z, features, length)
    bars = torch.linalg.pinv(J.T @ J, hermitian=True).diagonal().clamp_min(0).sqrt()
    error = WHOLE_HEAD.error_bars * float(bars[:classes].sum())
    clean = label.clamp_min(0) / label.clamp_min(0).sum()
    return Recovery(
        Status.AMBIGUOUS,
        f"a label whose feature moves in {steps} steps explains the head's update to within "
        "rounding; other labels were not excluded, because the search is local and no input is "
        "known that the client could be run on again",
        label=clean,
        feature=features[0] @ equations.basis,
        error=error,
        family=simplest_family(clean, error),
    )
