"""Find the sparse vectors of a space: one for each sample of a batch behind a ReLU.

The rows of ``R`` (m, B) are points; a sample whose unit j was off has ``R_j · a = 0``. So each
sample is a hyperplane that holds many of the points exactly, where any B − 1 would be chance.
Where samples are alike, units that one sample alone switched on lie on a line and tell even more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from softleak.core.factors import SMALLEST_NORMAL

SCATTER_STEPS = 25  # steps of Tyler's estimate
ROUNDS = 24  # searches, each from new starts away from what was found
STARTS = 16  # starts of a search, at least
STARTS_PER_MISSING = 2  # starts for each vector that is still missing
MOST_STARTS = 128  # starts of a search, at most
# Below which entries, of root mean square one, count as zero while climbing. Odd searches leave the
# first one out: it reaches further, but can lead past a vector.
THRESHOLDS = (0.6, 0.3, 0.1)
CLIMB_STEPS = (120, 60, 30)  # steps at each threshold
AWAY_STEPS = 60  # steps in which a start of an even search is kept orthogonal to what was found
SPREAD = 0.7  # how far an odd search's starts are moved from that complement, at random
SAME_COSINE = 0.98  # two unit vectors of at least this cosine are one
SMALLEST_STEPS = 3  # steps of a first, quick fit to the smallest entries
L1_STEPS = 24  # steps of the reweighted fit towards the least sum of absolute entries
LOG_STEPS = 8  # steps of it towards the fewest entries, which make it exact
SHARPEN_PART = 0.3  # the part of the entries whose size sets the first weights
L1_RATE = 0.75  # the factor of that size from step to step, at first
LOG_RATE = 0.1  # this factor at last
# Random sets of B − 1 entries, each of whose null vectors is tried where the fit alone did not
# become exact.
DRAWS = 256
POOL = 2.0  # these entries are drawn from this many times B of the smallest
DRAWN_VECTORS = 8  # vectors of one search that are treated so, at most
DRAW_STEPS = 4  # how often: the best null vector of one step is where the next begins
JUDGED_PART = 0.3  # the best is the one whose entries up to this part are the smallest
ZERO_ERRORS = 8.0  # an entry of this many standard errors or less is zero
# Zeros beyond the B − 1 that any vector can have. A chance zero has a probability of about 1e-5, so
# that eight of them do not happen.
MARGIN = 8
# The second smallest singular value of the zeros' rows, in errors: below it another vector vanishes
# there too, and neither is that of one sample.
CLEAR_ERRORS = 64.0
RESOLVED = 1e-6  # this value relative to the largest; float64 resolves 1e-8 of it
# No single zero may decide a direction by more than this. A mix of two samples vanishes where both
# do and, by choice of the mix, at one more entry, of leverage one.
LEVERAGE = 0.98


def rounded_cloud(R: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit rows (m, B) of isotropic scatter, and ``T`` with rows along ``R T``."""
    T = torch.eye(R.shape[1], dtype=R.dtype, device=R.device)
    if len(R) <= R.shape[1]:
        return R, T
    for _ in range(SCATTER_STEPS):
        points = unit_rows(R @ T)
        scatter = points.T @ points * (R.shape[1] / len(R))
        values, vectors = torch.linalg.eigh(scatter)
        T = T @ (vectors * values.clamp_min(SMALLEST_NORMAL).rsqrt()) @ vectors.T
    return unit_rows(R @ T), T


def climb(points: Tensor, known: Tensor, odd: bool, generator: torch.Generator) -> Tensor:
    """Return unit vectors (S, B) near sparse ones, most of them not near those that are known."""
    B = points.shape[1]
    count = max(STARTS, STARTS_PER_MISSING * (B - len(known)))
    basis = torch.linalg.qr(known.T)[0]
    a = starts(known, min(count, MOST_STARTS), generator)
    a = a if odd else a - (a @ basis) @ basis.T
    plan = list(zip(THRESHOLDS, CLIMB_STEPS, strict=True))[odd:]
    step = 0
    for threshold, steps in plan:
        for _ in range(steps):
            if step < AWAY_STEPS and not odd:
                a = a - (a @ basis) @ basis.T
            p = (unit_rows(a) @ points.T) * B**0.5
            a = (p - p.clamp(-threshold, threshold)) @ points
            step += 1
    return unit_rows(a)


def starts(known: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return vectors (S, B) about orthogonal to those that are known (K, B), at random."""
    drawn = torch.randn(2, count, known.shape[1], generator=generator).to(known)
    basis = torch.linalg.qr(known.T)[0]
    away = unit_rows(drawn[0] - (drawn[0] @ basis) @ basis.T)
    return unit_rows(away + SPREAD * unit_rows(drawn[1]))


def distinct(a: Tensor, known: Tensor) -> Tensor:
    """Return those of the vectors (S, B) that are neither known nor alike."""
    known = unit_rows(known)
    a = a[((a @ known.T).abs() < SAME_COSINE).all(1)]
    return a[first_of_its_kind(a, SAME_COSINE)]


def first_of_its_kind(a: Tensor, same: float) -> Tensor:
    """Return for each unit vector (S, B) whether none before it is the same up to its sign."""
    alike = (a @ a.T).abs() >= same
    return ~alike.tril(-1).any(1)


def unit_rows(a: Tensor) -> Tensor:
    """Return the rows (S, B), each of length one."""
    return torch.div(a, a.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORMAL))


LINES_ERRORS = 6.0  # two rows are parallel if this many standard errors explain the angle
LINES_FEWEST = 3  # rows on one line, at least
# Rows that are compared pairwise, at most; those of the smallest relative error.
LINES_MOST_ROWS = 4096
LINES_BLUNT = 1e-3  # rows whose direction is less certain than this are left out


def lone_lines(R: Tensor, errors: Tensor) -> Tensor:
    """Return unit vectors (K, B), K ≤ B, along which several rows of ``R`` (m, B) lie exactly."""
    lengths = R.norm(dim=1).clamp_min(SMALLEST_NORMAL)
    blunt = errors * R.shape[1] ** 0.5 / lengths  # the error of each row's direction
    order = blunt.argsort()[:LINES_MOST_ROWS]
    order = order[blunt[order] < LINES_BLUNT]
    unit, blunt = R[order] / lengths[order, None], blunt[order]
    together = _parallel(unit, blunt)
    lines: list[Tensor] = []
    while len(unit) and len(lines) < R.shape[1]:
        count, at = together.sum(1).max(0)
        if int(count) < LINES_FEWEST:
            break
        members = together[at]
        signs = torch.sign(unit[members] @ unit[at])
        weights = signs / blunt[members].square()
        line = weights @ unit[members]
        lines.append(line / line.norm())
        together = together & ~members & ~members[:, None]
    return torch.stack(lines) if lines else R.new_zeros(0, R.shape[1])


def line_duals(lines: Tensor) -> Tensor:
    """Return vectors (N, B) orthogonal to B − 1 of the ``lines`` (K, B), where K ≥ B − 1."""
    count, size = lines.shape
    if count == size:
        return torch.as_tensor(torch.linalg.pinv(lines).T)
    return torch.as_tensor(torch.linalg.svd(lines)[2][count:]) if count == size - 1 else lines[:0]


def _parallel(unit: Tensor, blunt: Tensor) -> Tensor:
    """Return which pairs of unit rows (n, B) are parallel, but for their errors (n,)."""
    cosine = (unit @ unit.T).clamp(-1, 1)
    angle = (1 - cosine.square()).clamp_min(0).sqrt()
    allowed = (blunt.square()[:, None] + blunt.square()).sqrt()
    return angle <= LINES_ERRORS * allowed + 1e-7  # 1e-7 is what float64 leaves of 1 − cos²


@dataclass(frozen=True, eq=False)
class Directions:
    """Sparse vectors of a space: ``vectors`` (N, B), ``zeros`` (N, m) of ``R a``.

    ``clearance`` (N,) is the smallest singular value that would have to be zero for another vector
    to vanish at the same entries, in standard errors.
    """

    vectors: Tensor
    zeros: Tensor
    clearance: Tensor

    @classmethod
    def none(cls, R: Tensor) -> Directions:
        zeros = torch.zeros(0, len(R), dtype=torch.bool, device=R.device)
        return cls(R[:0], zeros, R.new_zeros(0))

    def __len__(self) -> int:
        return len(self.vectors)

    def joined(self, more: Directions, inverse: Tensor) -> Directions:
        """Return both, without those of the second that the first has already."""
        vectors = torch.cat([self.vectors, more.vectors])
        zeros = torch.cat([self.zeros, more.zeros])
        gaps = torch.cat([self.clearance, more.clearance])
        first = first_of_its_kind(unit_rows(vectors @ inverse.T), 1 - 1e-6)
        return Directions(vectors[first], zeros[first], gaps[first])


def exact_directions(R: Tensor, errors: Tensor, alive: Tensor, a: Tensor) -> Directions:
    """Return those of the vectors that vanish exactly where one sample was off."""
    B, scaled = R.shape[1], R / errors[:, None]
    kept, masks, gaps = [], [], []
    for vector in unit_rows(a):
        zeros = (scaled @ vector).abs() <= ZERO_ERRORS
        for _ in range(2):  # the fit to the zeros found shows which ones they are
            rows = scaled[zeros & alive]
            if len(rows) < B - 1 + MARGIN:
                break
            values, vectors = torch.linalg.eigh(rows.T @ rows)
            vector = vectors[:, 0]
            zeros = (scaled @ vector).abs() <= ZERO_ERRORS
        else:
            gap = float(values[1].clamp_min(0).sqrt()) if B > 1 else torch.inf
            least = max(CLEAR_ERRORS, RESOLVED * float(values[-1].clamp_min(0).sqrt()))
            enough = int((zeros & alive).sum()) >= B - 1 + MARGIN
            if enough and gap > least and _leverage(rows, vector) < LEVERAGE:
                kept.append(vector)
                masks.append(zeros)
                gaps.append(gap)
    if not kept:
        return Directions.none(R)
    return Directions(torch.stack(kept), torch.stack(masks), R.new_tensor(gaps))


def _leverage(rows: Tensor, vector: Tensor) -> float:
    """Return the largest leverage of a row (n, B) on the vector that all rows are orthogonal to."""
    unit = unit_rows(rows)
    gram = unit.T @ unit + torch.outer(vector, vector) * len(rows)
    return float((unit * torch.linalg.solve(gram, unit.T).T).sum(1).max())


def fit_smallest(points: Tensor, a: Tensor) -> Tensor:
    """Return the vectors (S, B), each fitted to the smallest part of its own entries alone."""
    out = []
    count = min(max(int(SHARPEN_PART * len(points)), points.shape[1]), len(points))
    for vector in a:
        for _ in range(SMALLEST_STEPS):
            rows = points[(points @ vector).abs().topk(count, largest=False).indices]
            vector = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
        out.append(vector)
    return torch.stack(out) if out else a


def sharpen(points: Tensor, a: Tensor) -> Tensor:
    """Return the vectors (S, B), each fitted to its own smallest entries."""
    if not len(a):
        return a
    start, p = a, (a @ points.T).abs()
    size = p.quantile(SHARPEN_PART, dim=1, keepdim=True)
    eye = 1e-14 * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    for step in range(L1_STEPS + LOG_STEPS):
        weights = 1 / (p.square() + size.square()).sqrt()
        if step >= L1_STEPS:
            weights, start = weights.square(), a
        weights = weights / weights.sum(1, keepdim=True)
        grams = torch.stack([(points * w[:, None]).T @ points for w in weights])
        a = unit_rows(torch.linalg.solve(grams + eye, start))
        p = (a @ points.T).abs()
        rate = L1_RATE if step < L1_STEPS else LOG_RATE
        size = (size * rate).clamp_min(1e-9)
    return a


def draw(points: Tensor, a: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
    """Return, for each vector (S, B), the best null vector of random sets of small entries."""
    a = torch.cat([a, starts(known, DRAWN_VECTORS, generator)])[:DRAWN_VECTORS]
    B, known = points.shape[1], unit_rows(known)
    count = min(max(int(POOL * B), B + MARGIN), len(points))
    out = []
    for vector in a:
        for _ in range(DRAW_STEPS):
            pool = (points @ vector).abs().topk(count, largest=False).indices
            keys = torch.rand(DRAWS, count, generator=generator).to(points)
            chosen = pool[keys.argsort(1)[:, : B - 1]]
            rows = torch.cat([points[chosen], vector.expand(len(keys), 1, B)], 1)
            target = torch.zeros_like(rows[:, :, :1])
            target[:, -1] = 1
            null, failed = torch.linalg.solve_ex(rows, target)
            null = unit_rows(null[..., 0][failed == 0].nan_to_num(0, 0, 0))
            judged = (null @ points.T).abs().quantile(JUDGED_PART, dim=1)
            judged = torch.where(null.norm(dim=1) > 0.5, judged, torch.inf)
            old = ((null @ known.T).abs() >= SAME_COSINE).any(1)
            judged = torch.where(old, torch.inf, judged)
            vector = null[judged.argmin()]
        out.append(vector)
    return torch.stack(out) if out else a


def sparse_directions(R: Tensor, errors: Tensor) -> Directions:
    """Return the sparse vectors of the column space of ``R`` (m, B), as many as were found."""
    lines = lone_lines(R, errors)
    if len(lines) and R.shape[1] > 1:
        found = _beside_lines(R, errors, lines)
        if len(found) == R.shape[1]:
            return found
    return _search(R, errors, R[:0])


def _beside_lines(R: Tensor, errors: Tensor, lines: Tensor) -> Directions:
    """Return the sparse vectors, where ``lines`` (K, B) are the rows of units of K samples alone.

    The vectors of the other samples are orthogonal to all lines, and that of one of the K samples
    to all lines but its own: both searches are in fewer dimensions. There, the other samples no
    longer count, so that more units are of one sample alone and new lines appear.
    """
    missing = R.shape[1] - len(lines)
    rest = torch.linalg.svd(lines)[2][len(lines) :].T  # (B, B − K)
    if missing:
        others = sparse_directions(R @ rest, errors).vectors @ rest.T
        if len(others) != missing:
            return Directions.none(R)
    else:
        others = R[:0]
    vectors = [others]
    for own in torch.linalg.pinv(lines).T:
        if missing:
            basis = torch.linalg.qr(torch.cat([own[None], others]).T)[0]
            within = R @ basis
            near = torch.cat([others @ basis, line_duals(lone_lines(within, errors))])
            more = _search(within, errors, near)
            if len(more) != missing + 1:
                return Directions.none(R)
            own = (more.vectors @ basis.T)[-1]
        vectors.append(own[None])
    alive = _alive(R, errors)
    inverse = torch.linalg.inv(rounded_cloud(R[alive])[1])
    found = exact_directions(R, errors, alive, torch.cat(vectors))
    return Directions.none(R).joined(found, inverse)


def _alive(R: Tensor, errors: Tensor) -> Tensor:
    """Return which units (m,) were on for some sample."""
    return torch.gt(R.norm(dim=1), ZERO_ERRORS * errors * R.shape[1] ** 0.5)


def _search(R: Tensor, errors: Tensor, known: Tensor) -> Directions:
    """Return the sparse vectors of the space of ``R`` (m, B), those near to known ones first."""
    generator = torch.Generator().manual_seed(0)
    B, alive = R.shape[1], _alive(R, errors)
    if B == 1:  # one sample is left, and the space is its own
        return Directions(R.new_ones(1, 1), ~alive[None], R.new_tensor([torch.inf]))
    if int(alive.sum()) < B + MARGIN:
        return exact_directions(R, errors, alive, known)
    points, T = rounded_cloud(R[alive])
    inverse = torch.linalg.inv(T)
    exact = exact_directions(R, errors, alive, known)
    found = Directions.none(R).joined(exact, inverse)
    for number in range(ROUNDS):
        if len(found) >= B:
            break
        before = len(found)
        near = found.vectors @ inverse.T
        new = distinct(climb(points, near, number % 2 == 1, generator), near)
        for way in (fit_smallest, sharpen, partial(draw, known=near, generator=generator)):
            sharp = way(points, new) @ T.T
            more = exact_directions(R, errors, alive, sharp)
            found = found.joined(more, inverse)
            if len(found) > before:  # the slower ways are for what the quicker ones leave
                break
    return found
