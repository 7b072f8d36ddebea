"""Read every sample of a batch whose outputs are labels of their own: sigmoid cross-entropy.

The residuals ``δ_i = σ(z_i) − y_i`` are vectors of the span of ``U`` whose entries lie near ``p_c``
or ``p_c − 1``, with ``p`` what the network usually predicts. R entries decide such a vector, and
each of them is one of two numbers: for few samples all choices are looked at. From the R best
vectors all features follow, and then the joint system is solved; labels are read again from it.

Without the bias ``1 − y`` with the feature ``−x`` is the same residual and the same gradient, so
labels are proved only with it, or if features are never negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

import torch
from torch import Tensor

from softleak.batches.certificate import BatchCertificate, certify
from softleak.batches.rows import FITS, NEAR, RowSystem
from softleak.batches.search import Whole, solve_found
from softleak.batches.systems import HeadSpace, Supports

MOST_SAMPLES = 10  # of which all choices of signs are looked at
MOST_VECTORS = 60  # the number of candidate vectors that samples are picked from
SETS_TRIED = 60  # the number of sets of vectors that are solved for
STEPS, READ_AGAIN = 40, 6  # of each solution, and how often labels are read again
DEPENDENT = 0.05  # a vector with so little beyond those picked before is one of them again
FLIPPED_MISFIT = 32.0  # a batch with one label flipped counts as refuted beyond this misfit
SINGLE = 0.05  # the second largest residual of a sample, relative to its largest, at least
CHOICE_BITS = 1.0  # what the choice of a label takes of the equations' bits


def find_binary(
    space: HeadSpace, features: Tensor, smoothed: bool, positive: bool
) -> tuple[Whole, BatchCertificate] | None:
    """Return all samples of a batch and what is proved of them, or None if none were found.

    Args:
        space: the factors of the head's gradient, at the loss's factor.
        features: usual features (n, I).
        smoothed: whether labels are smoothed, each sample's by an amount of its own.
        positive: whether features are never negative.
    """
    if not 0 < space.rank <= min(MOST_SAMPLES, space.classes - 1) or not len(features):
        return None
    usual = space.widened(features) @ space.V
    p = space.activate(usual @ (space.weights @ space.V).T + space.offset).mean(0)
    a = _vectors(space, p)
    best: tuple[float, Tensor, Tensor, RowSystem] | None = None
    for rows in islice(_sets(space, a), SETS_TRIED):
        found = _solved(space, a[rows], p, usual.mean(0), smoothed)
        if best is None or found[0] < best[0]:
            best = found
        if best[0] < FITS:
            break
    if best is None or best[0] > NEAR:
        return None
    _, z, c, system = best
    names = torch.arange(len(z), device=z.device)
    whole = solve_found(space, system.supports, system.found(z, c, names))
    return whole, _proof(whole, system.supports, space.with_bias or positive)


def _vectors(space: HeadSpace, p: Tensor) -> Tensor:
    """Return vectors ``a`` (n, R) whose ``U a`` come near to residuals, the nearest first."""
    R = space.rank
    rows = _independent(space.spread)
    choices = torch.tensor(list(product((0.0, 1.0), repeat=R)), dtype=torch.double).to(p)
    a: Tensor = torch.linalg.solve(space.spread[rows], (p[rows] - choices).T).T
    delta = a @ space.spread.T
    off = torch.minimum((delta - p).abs(), (delta - p + 1).abs()).square().sum(-1)
    return a[off.argsort()[:MOST_VECTORS]]


def _independent(matrix: Tensor) -> Tensor:
    """Return the places (R,) of rows (C, R) that are far from dependent, picked greedily."""
    rest, picked = matrix.clone(), []
    for _ in range(matrix.shape[1]):
        row = int(rest.norm(dim=1).argmax())
        unit = rest[row] / rest[row].norm()
        rest = rest - (rest @ unit)[:, None] * unit
        picked.append(row)
    return torch.tensor(picked, device=matrix.device)


def _sets(space: HeadSpace, a: Tensor) -> Iterator[list[int]]:
    """Yield places of R independent vectors, the nearest first; then with some left out."""
    for left_out in [None, *range(len(a))]:
        basis, picked = a.new_zeros(0, a.shape[1]), []
        for i, vector in enumerate(a):
            rest = vector - basis.T @ (basis @ vector)
            if i != left_out and float(rest.norm()) > DEPENDENT * float(vector.norm()):
                basis = torch.cat([basis, (rest / rest.norm())[None]])
                picked.append(i)
            if len(picked) == space.rank:
                yield picked
                break


def _solved(
    space: HeadSpace, a: Tensor, p: Tensor, usual: Tensor, smoothed: bool
) -> tuple[float, Tensor, Tensor, RowSystem]:
    """Return the misfit, features, coefficients and system of samples from their vectors."""
    z = torch.linalg.inv(a).mT * space.factor * space.S
    # A vector and its opposite are both near to residuals; features tell which it is.
    along = z @ _direction(space, usual)
    turned = torch.where(along < 0, -1.0, 1.0)[:, None]
    z, a = z * turned, a * turned
    label = (p - a @ space.spread.T > 0.5).to(p)
    seen: list[Tensor] = []
    best: tuple[float, Tensor, Tensor, RowSystem] | None = None
    for _ in range(READ_AGAIN):
        seen.append(label)
        system = RowSystem(space, flats_of(label, smoothed))
        z, c, _ = system.solve(z, STEPS)
        misfit = system.misfit(z, c)
        if best is None or misfit < best[0]:
            best = misfit, z, c, system
        a = torch.linalg.inv_ex(z / (space.factor * space.S))[0].mT
        label = (system.predicted(z) - a @ space.spread.T > 0.5).to(p)
        if misfit < FITS or any(torch.equal(label, one) for one in seen):
            break
    return best if best is not None else (float("inf"), z, z[:, :0], system)


def _direction(space: HeadSpace, usual: Tensor) -> Tensor:
    """Return a vector (R,) whose product with every feature is positive."""
    constraint = space.constraint
    return usual if constraint is None else constraint / (space.factor * space.S)


def flats_of(label: Tensor, smoothed: bool) -> Supports:
    """Return the flats of labels (N, C) of zeros and ones: each by itself, or drawn to a half."""
    names = tuple(tuple(row.nonzero()[:, 0].tolist()) for row in label)
    directions = (0.5 - label)[..., None]
    return Supports(names, label, directions if smoothed else directions[..., :0])


def _proof(whole: Whole, supports: Supports, told: bool) -> BatchCertificate:
    """Return what is proved of all samples: nothing where another label fits as well."""
    system, x = whole.system, whole.x
    proof = certify(system, x, whole.misfit)
    at = system.point(x)
    # Every label is a choice of two, so that it takes a bit of what the equations test.
    bits = proof.bits - CHOICE_BITS * at.label.numel()
    regular = proof.regular & told & whole.explained
    # Where only one output of a sample is open, its residual can be traded for another's label.
    two = (at.p - at.label).abs().topk(2, dim=-1).values
    regular = regular & (two[:, 1] > SINGLE * two[:, 0]).all()
    if bool(regular.any()) and _flip_fits(whole, supports):
        regular = torch.zeros_like(regular)
    return replace(proof, bits=bits, regular=regular)


def _flip_fits(whole: Whole, supports: Supports) -> bool:
    """Return whether a batch with one of its labels flipped explains the gradient as well."""
    space, at = whole.system.space, whole.system.point(whole.x)
    z = at.b * space.factor * space.S
    for i in range(len(z)):
        for c in range(space.classes):
            label = supports.origin.clone()
            label[i, c] = 1 - label[i, c]
            system = RowSystem(space, flats_of(label, bool(supports.unknowns)))
            moved, own, _ = system.solve(z, STEPS)
            if system.misfit(moved, own) < FLIPPED_MISFIT:
                return True
    return False
