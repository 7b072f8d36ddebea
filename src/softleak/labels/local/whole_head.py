"""Recover the label of one sample behind several steps of all layers, by the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from softleak.core.factors import factor
from softleak.core.families import AnyLabel, Family
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.update import SgdSteps, mean_of_head
from softleak.labels.certify import simplest_family
from softleak.labels.curve import on_simplex, spread_of
from softleak.labels.local.head_alone import LABEL_EQUATIONS_OUTSIDE, RecursionCurve, trains_bias
from softleak.labels.search import local_minima
from softleak.labels.solve import WIDEST

# What says what is known of the way of a feature, and how equations are solved.
MOVING_DRIFT = 0.3  # of a feature's length: how far it may move over all steps
MOVING_BEND = 0.03  # of its length: how far it may be from the line between its ends
MOVING_LABEL_ERROR = 1e-6  # how far entries may be from the family, and from the sum one
MOVING_SECOND = 0.35  # of the first singular value: a larger second one is no single sample's
MOVING_DAMPING = 1e-3  # at first, of the diagonal
MOVING_SETTLED = 1e-6  # a step that lowers the misfit by a smaller part ends it


@dataclass(frozen=True, eq=False)
class MovingHead:
    """The head's update of one sample in a basis of its row space.

    A bias that is trained too is a further column of target and weight: its feature is always one.
    """

    target: Tensor  # the update less its decay (C, r)
    weight: Tensor  # the head's weight (C, r) in the same basis
    bias: Tensor  # its bias (C,), if it is not trained; else zeros
    noise: Tensor  # the standard error of an entry of the target, for every column (r,)
    recipe: SgdSteps  # the steps
    basis: Tensor  # the basis (r, I)
    family: Family  # the family that the label is of

    @classmethod
    def of(
        cls, subject: Subject, share: GradientShare, recipe: SgdSteps, family: Family
    ) -> MovingHead | None:
        """Return the equations of an update; None if it cannot be that of one sample."""
        head = subject.head
        mean = mean_of_head(subject, share, recipe)
        moved = mean[head.weight_name].double() * recipe.total
        noise = _noise(subject, share, head.weight_name)
        columns, sizes, rows = torch.linalg.svd(moved, full_matrices=False)
        if not float(sizes[0]) or float(sizes[1]) > MOVING_SECOND * float(sizes[0]):
            return None
        seen = _above(noise, sizes, moved)
        if seen > recipe.steps:  # one sample leaves one row for each step
            return None
        basis = rows[: max(min(seen, len(sizes) - 1), 1)]
        basis = _with_drift(basis, head.W.double().T @ columns[:, 0])
        target, weight, b = moved @ basis.T, head.W.double() @ basis.T, head.b.double()
        errors = target.new_full((len(basis),), noise)
        if trains_bias(subject, share):
            own = mean[head.bias_name].double()[:, None] * recipe.total
            target, weight = torch.cat([target, own], 1), torch.cat([weight, b[:, None]], 1)
            error = errors.new_tensor([_noise(subject, share, head.bias_name)])
            errors, b = torch.cat([errors, error]), torch.zeros_like(b)
        return cls(target, weight, b, errors, recipe, basis, family)

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the number of classes, and of directions of features that the update shows."""
        return len(self.target), len(self.basis)

    def moves(self, y: Tensor, features: Tensor) -> list[Tensor]:
        """Return what has moved (C, r) before every step and at the end, as ``target`` counts it.

        That is for a label (C,) and the features (K, r) before each step, without the decay of the
        first weights. A trained bias sees a feature of one.
        """
        missing = self.target.shape[1] - len(self.basis)
        seen = torch.cat([features, features.new_ones(len(features), missing)], 1)
        moves, memory = [torch.zeros_like(self.target)], None
        for kept, h in zip(self.recipe.kept, seen, strict=False):
            logits = kept * (self.weight @ h) + self.bias - moves[-1] @ h
            delta = torch.softmax(logits, 0) - y
            moved, memory = self.recipe.step(moves[-1], memory, delta[:, None] * h)
            moves.append(moved)
        return moves

    def residual(self, y: Tensor, features: Tensor) -> Tensor:
        """Return (C r + C + 1,) what is left of the update, the family and the sum, in errors."""
        rest = (self.moves(y, features)[-1] - self.target) / self.noise
        label = torch.cat([y - self.family.project(y), y.sum()[None] - 1])
        return torch.cat([rest.flatten(), label / MOVING_LABEL_ERROR])

    def on_a_line(self, z: Tensor, along: Tensor, length: Tensor) -> Tensor:
        """Return the residual of a feature that moves on a line, and the length of its way.

        Args:
            z: the label (C,), the first feature (r,) and how far it moves in all (r,).
            along: (K,) the part of its way that lies behind it before each step.
            length: () of the feature.
        """
        classes, rank = self.sizes
        y, first, way = torch.split(z, [classes, rank, rank])
        left = self.residual(y, first + along[:, None] * way)
        return torch.cat([left, way / (MOVING_DRIFT * length)])

    def anywhere(self, z: Tensor, line: Tensor, length: Tensor) -> Tensor:
        """Return the residual of features that move near a line (K, r)."""
        classes, _ = self.sizes
        y, features = z[:classes], z[classes:].view(line.shape)
        bent = (features - line) / (MOVING_BEND * length)
        return torch.cat([self.residual(y, features), bent.flatten()])


def rows_seen(subject: Subject, share: GradientShare) -> int:
    """Return how many steps of one sample an update of the head without weight decay needs."""
    moved = share[subject.head.weight_name].double()
    noise = _noise(subject, share, subject.head.weight_name)
    return _above(noise, torch.linalg.svdvals(moved), moved)


def _above(noise: float, sizes: Tensor, moved: Tensor) -> int:
    """Return how many singular values of an update (C, I) stand out of noise on every entry."""
    return int((sizes > noise * sum(n**0.5 for n in moved.shape)).sum())


def _noise(subject: Subject, share: GradientShare, name: str) -> float:
    """Return the standard error of an entry of an update."""
    own = share.resolution(name, subject.head.dtype) * float(share[name].abs().max())
    return share.noise(name) / 3**0.5 + own


def _with_drift(basis: Tensor, direction: Tensor) -> Tensor:
    """Return a basis (r + 1, I) that holds the direction (I,) in which a feature is pushed.

    Where all ``p − y`` are parallel, a way of the feature leaves no second row in the update, but
    it moves the logits. Layers before the head are taught along the head's own weights.
    """
    own = direction - basis.T @ (basis @ direction)
    size = float(own.norm())
    if size <= torch.finfo(own.dtype).eps * float(direction.norm()):
        return basis
    return torch.cat([basis, own[None] / size])


def descend(
    residual: Callable[..., Tensor], z: Tensor, *others: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Return where Levenberg–Marquardt leads from B starts ``z`` (B, n), and ``‖r‖²`` there (B,).

    ``residual`` is a function of unknowns (n,) and of what else belongs to each start, of which
    ``others`` (B, …) are. No more than so many ``iterations`` are taken.
    """
    value, slope = vmap(residual), vmap(jacfwd(residual))
    rest = value(z, *others)
    size = rest.square().sum(1)
    damping, open_ = torch.full_like(size, MOVING_DAMPING), size.isfinite()
    for _ in range(iterations):
        J = slope(z, *others).nan_to_num(0.0)
        normal = J.mT @ J
        diagonal = normal.diagonal(dim1=1, dim2=2).clamp_min(1e-300)
        damped = normal + torch.diag_embed(damping[:, None] * diagonal)
        step = torch.linalg.solve_ex(damped, (J.mT @ rest[..., None]))[0][..., 0]
        tried = value(z - step, *others)
        new = tried.square().sum(1).nan_to_num(torch.inf)
        better = (new < size) & open_
        lowered = (size - new) / size
        z = torch.where(better[:, None], z - step, z)
        rest = torch.where(better[:, None], tried, rest)
        size = torch.where(better, new, size)
        damping = torch.where(better, damping / 10, damping * 5).clamp_min(1e-14)
        open_ = open_ & (damping < 1e8) & ~(better & (lowered < MOVING_SETTLED))
        if not bool(open_.any()):
            break
    return z, size


# What chooses where the search for a moving feature begins, and judge its end.
WHOLE_HEAD_READINGS = 4  # scalars at which a feature that stays comes nearest to the family
WHOLE_HEAD_WAYS = (-0.2, -0.05, 0.05, 0.2)  # of its length: ways that are tried
WHOLE_HEAD_DIRECTIONS = 3  # directions of these ways: the last ones of the basis
WHOLE_HEAD_QUICK = 30  # steps of every start, on a line
WHOLE_HEAD_KEPT = 6  # starts that are followed further, those nearest to the update
WHOLE_HEAD_SLOW = 100  # steps of these
WHOLE_HEAD_FITS = 4.0  # root mean square, in errors: an update that is explained is below
WHOLE_HEAD_ERROR_BARS = 4.0  # standard errors that the label's error is stated with


def recover_by_head(
    subject: Subject, knowledge: Knowledge, share: GradientShare, recipe: SgdSteps
) -> Recovery | None:
    """Recover the label of one sample on which all layers were trained, from the head's update.

    Never UNIQUE: the search is local, and no input is known that the client could be run on again.
    None if the update cannot be one sample's.
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
    curve = RecursionCurve.of(subject.head, factors, recipe, trains_bias(subject, share))
    where, found = curve.interval(), []
    for rows, grid in where.grids():
        y, size = curve.take(where.client[rows]).labels(grid)
        outside = y.amax(-1) >= LABEL_EQUATIONS_OUTSIDE
        far = spread_of(WIDEST, y, size).masked_fill(outside, torch.inf)
        for row, left, _ in zip(*(part.tolist() for part in local_minima(far, grid)), strict=True):
            at = int((grid[row] - left).abs().argmin())
            found.append((float(far[row, at]), float(grid[row, at]), y[row, at]))
    found.sort(key=lambda one: one[0])
    direction = equations.basis @ factors.v[0].double()
    # Ways (M, r) of a feature, relative to its length: none, and some along each axis.
    axes = torch.eye(len(direction))[-WHOLE_HEAD_DIRECTIONS:]
    none = torch.zeros(1, len(direction))
    ways = torch.cat([none, *(size * axes for size in WHOLE_HEAD_WAYS)]).to(direction)
    starts = []
    for _, t, y in found[:WHOLE_HEAD_READINGS]:
        h = float(factors.sigma[0]) / t * direction
        starts += [torch.cat([y, h, way * h.norm()]) for way in ways]
    return torch.stack(starts) if starts else direction.new_zeros(0, 1)


def _followed(equations: MovingHead, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return label and features (C + K r,) of the start that leads nearest, and their length."""
    classes, rank = equations.sizes
    length = z[:, classes : classes + rank].norm(dim=1).clamp_min(1e-12)
    along = _progress(equations, z)
    z, size = descend(equations.on_a_line, z, along, length, iterations=WHOLE_HEAD_QUICK)
    near = size.nan_to_num(torch.inf).argsort()[:WHOLE_HEAD_KEPT]
    z, along, length = z[near], along[near], length[near]
    y, first, way = torch.split(z, [classes, rank, rank], 1)
    line = first[:, None] + along[..., None] * way[:, None]
    begin = torch.cat([y, line.flatten(1)], 1)
    found, size = descend(equations.anywhere, begin, line, length, iterations=WHOLE_HEAD_SLOW)
    best = size.nan_to_num(torch.inf).argmin()
    return found[best], length[best]


def _progress(equations: MovingHead, z: Tensor) -> Tensor:
    """Return (B, K) the part of its way that a feature has gone before each step."""
    found, (classes, rank) = [], equations.sizes
    for one in z:
        y, first, _ = torch.split(one, [classes, rank, rank])
        moves = equations.moves(y, first.expand(equations.recipe.steps, -1))
        sizes = torch.stack([moved.norm() for moved in moves])
        found.append(sizes[:-1] / sizes[-1].clamp_min(1e-300))
    return torch.stack(found)


def _answer(equations: MovingHead, z: Tensor, length: Tensor) -> Recovery:
    (classes, rank), steps = equations.sizes, equations.recipe.steps
    label, features = z[:classes], z[classes:].view(steps, rank)
    misfit = float(equations.residual(label, features).square().mean().sqrt())
    if not misfit <= WHOLE_HEAD_FITS:
        return Recovery(
            Status.NO_SOLUTION,
            "no label was found whose steps give the head's update while its feature moves: the "
            f"nearest leaves {misfit:.2g} times what rounding explains",
        )
    J = jacfwd(equations.anywhere)(z, features, length)
    bars = torch.linalg.pinv(J.T @ J, hermitian=True).diagonal().clamp_min(0).sqrt()
    error = WHOLE_HEAD_ERROR_BARS * float(bars[:classes].sum())
    clean = on_simplex(label)
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
