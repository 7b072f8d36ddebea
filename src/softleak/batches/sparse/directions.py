"""Find the sparse vectors of a space: one for each sample of a batch behind a ReLU.

The rows of ``R`` (m, B) are points; a sample whose unit j was off has ``R_j · a = 0``. So each
sample is a hyperplane that holds many of the points exactly, where any B − 1 would be chance.
Where samples are alike, units that one sample alone switched on lie on a line and tell even more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.core.factors import SMALLEST_NORMAL


@dataclass(frozen=True)
class DirectionSettings:
    """The settings of the search for sparse vectors.

    Attributes:
        scatter_steps: steps of Tyler's estimate.
        rounds: searches, each from new starts away from what was found.
        starts: starts of a search, at least.
        starts_per_missing: starts for each vector that is still missing.
        most_starts: starts of a search, at most.
        thresholds: below which entries, of root mean square one, count as zero while climbing. Odd
            searches leave the first one out: it reaches further, but can lead past a vector.
        climb_steps: steps at each threshold.
        away_steps: steps in which a start of an even search is kept orthogonal to what was found.
        spread: how far an odd search's starts are moved from that complement, at random.
        same: two unit vectors of at least this cosine are one.
        smallest_steps: steps of a first, quick fit to the smallest entries.
        l1_steps: steps of the reweighted fit towards the least sum of absolute entries.
        log_steps: steps of it towards the fewest entries, which make it exact.
        sharpen_part: the part of the entries whose size sets the first weights.
        l1_rate: the factor of that size from step to step, at first.
        log_rate: this factor at last.
        draws: random sets of B − 1 entries, each of whose null vectors is tried where the fit alone
            did not become exact.
        pool: these entries are drawn from so many times B of the smallest.
        drawn_vectors: vectors of one search that are treated so, at most.
        draw_steps: how often: the best null vector of one step is where the next begins.
        judged_part: the best is the one whose entries up to this part are the smallest.
        zero_errors: an entry of so many standard errors or less is zero.
        margin: zeros beyond the B − 1 that any vector can have. A chance zero has a probability of
            about 1e-5, so that eight of them do not happen.
        clear: the second smallest singular value of the zeros' rows, in errors: below it another
            vector vanishes there too, and neither is that of one sample.
        resolved: this value relative to the largest; float64 resolves 1e-8 of it.
        leverage: no single zero may decide a direction by more than this. A mix of two samples
            vanishes where both do and, by choice of the mix, at one more entry, of leverage one.
        seed: the seed of the starts.
    """

    scatter_steps: int = 25
    rounds: int = 24
    starts: int = 16
    starts_per_missing: int = 2
    most_starts: int = 128
    thresholds: tuple[float, ...] = (0.6, 0.3, 0.1)
    climb_steps: tuple[int, ...] = (120, 60, 30)
    away_steps: int = 60
    spread: float = 0.7
    same: float = 0.98
    smallest_steps: int = 3
    l1_steps: int = 24
    log_steps: int = 8
    sharpen_part: float = 0.3
    l1_rate: float = 0.75
    log_rate: float = 0.1
    draws: int = 256
    pool: float = 2.0
    drawn_vectors: int = 8
    draw_steps: int = 4
    judged_part: float = 0.3
    zero_errors: float = 8.0
    margin: int = 8
    clear: float = 64.0
    resolved: float = 1e-6
    leverage: float = 0.98
    seed: int = 0


DIRECTIONS = DirectionSettings()


def rounded_cloud(R: Tensor, settings: DirectionSettings) -> tuple[Tensor, Tensor]:
    """Return unit rows (m, B) of isotropic scatter, and ``T`` with rows along ``R T``."""
    T = torch.eye(R.shape[1], dtype=R.dtype, device=R.device)
    if len(R) <= R.shape[1]:
        return R, T
    for _ in range(settings.scatter_steps):
        points = unit_rows(R @ T)
        scatter = points.T @ points * (R.shape[1] / len(R))
        values, vectors = torch.linalg.eigh(scatter)
        T = T @ (vectors * values.clamp_min(SMALLEST_NORMAL).rsqrt()) @ vectors.T
    return unit_rows(R @ T), T


def climb(
    points: Tensor,
    known: Tensor,
    odd: bool,
    settings: DirectionSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return unit vectors (S, B) near sparse ones, most of them not near those that are known."""
    B = points.shape[1]
    count = max(settings.starts, settings.starts_per_missing * (B - len(known)))
    basis = torch.linalg.qr(known.T)[0]
    a = starts(known, min(count, settings.most_starts), settings, generator)
    a = a if odd else a - (a @ basis) @ basis.T
    plan = list(zip(settings.thresholds, settings.climb_steps, strict=True))[odd:]
    step = 0
    for threshold, steps in plan:
        for _ in range(steps):
            if step < settings.away_steps and not odd:
                a = a - (a @ basis) @ basis.T
            p = (unit_rows(a) @ points.T) * B**0.5
            a = (p - p.clamp(-threshold, threshold)) @ points
            step += 1
    return unit_rows(a)


def starts(
    known: Tensor, count: int, settings: DirectionSettings, generator: torch.Generator
) -> Tensor:
    """Return vectors (S, B) about orthogonal to those that are known (K, B), at random."""
    drawn = torch.randn(2, count, known.shape[1], generator=generator).to(known)
    basis = torch.linalg.qr(known.T)[0]
    away = unit_rows(drawn[0] - (drawn[0] @ basis) @ basis.T)
    return unit_rows(away + settings.spread * unit_rows(drawn[1]))


def distinct(a: Tensor, known: Tensor, settings: DirectionSettings) -> Tensor:
    """Return those of the vectors (S, B) that are neither known nor alike."""
    known = unit_rows(known)
    a = a[((a @ known.T).abs() < settings.same).all(1)]
    return a[first_of_its_kind(a, settings.same)]


def first_of_its_kind(a: Tensor, same: float) -> Tensor:
    """Return for each unit vector (S, B) whether none before it is the same up to its sign."""
    alike = (a @ a.T).abs() >= same
    return ~alike.tril(-1).any(1)


def unit_rows(a: Tensor) -> Tensor:
    """Return the rows (S, B), each of length one."""
    return torch.div(a, a.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORMAL))


# Of the search for parallel rows.
LINES_ERRORS = 6.0  # two rows are parallel if so many standard errors explain the angle
LINES_FEWEST = 3  # rows on one line, at least
# Rows that are compared pairwise, at most; those of the smallest relative error.
LINES_MOST_ROWS = 4096
LINES_BLUNT = 1e-3  # rows whose direction is less certain than this are left out


def lone_lines(R: Tensor, errors: Tensor) -> Tensor:
    """Return unit vectors (K, B), K ≤ B, along which several rows of ``R`` (m, B) lie exactly.

    Args:
        R: the points, one row for each unit.
        errors: the standard error (m,) of each row's entries.
    """
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
    """Return vectors (N, B) that are orthogonal to B − 1 of the unit vectors ``lines`` (K, B).

    They are the sparse vectors if each line is that of one sample: all B of them if K is B, that of
    the sample without a line if K is B − 1, and none if there are fewer lines.
    """
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
        """Return no vector of the space of ``R`` (m, B)."""
        zeros = torch.zeros(0, len(R), dtype=torch.bool, device=R.device)
        return cls(R[:0], zeros, R.new_zeros(0))

    def __len__(self) -> int:
        return len(self.vectors)


def exact_directions(
    R: Tensor, errors: Tensor, alive: Tensor, a: Tensor, settings: DirectionSettings
) -> Directions:
    """Return those of the vectors that vanish exactly where one sample was off."""
    B, scaled = R.shape[1], R / errors[:, None]
    kept, masks, gaps = [], [], []
    for vector in unit_rows(a):
        zeros = (scaled @ vector).abs() <= settings.zero_errors
        for _ in range(2):  # the fit to the zeros found shows which ones they are
            rows = scaled[zeros & alive]
            if len(rows) < B - 1 + settings.margin:
                break
            values, vectors = torch.linalg.eigh(rows.T @ rows)
            vector = vectors[:, 0]
            zeros = (scaled @ vector).abs() <= settings.zero_errors
        else:
            gap = float(values[1].clamp_min(0).sqrt()) if B > 1 else torch.inf
            least = max(settings.clear, settings.resolved * float(values[-1].clamp_min(0).sqrt()))
            enough = int((zeros & alive).sum()) >= B - 1 + settings.margin
            if enough and gap > least and _leverage(rows, vector) < settings.leverage:
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


def joined_directions(found: Directions, more: Directions, inverse: Tensor) -> Directions:
    """Return both, without those of the second that the first has already."""
    vectors = torch.cat([found.vectors, more.vectors])
    zeros, gaps = torch.cat([found.zeros, more.zeros]), torch.cat([found.clearance, more.clearance])
    unit = unit_rows(vectors @ inverse.T)
    first = first_of_its_kind(unit, 1 - 1e-6)
    return Directions(vectors[first], zeros[first], gaps[first])


def fit_smallest(points: Tensor, a: Tensor, settings: DirectionSettings) -> Tensor:
    """Return the vectors (S, B), each fitted to the smallest part of its own entries alone."""
    out = []
    count = min(max(int(settings.sharpen_part * len(points)), points.shape[1]), len(points))
    for vector in a:
        for _ in range(settings.smallest_steps):
            rows = points[(points @ vector).abs().topk(count, largest=False).indices]
            vector = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
        out.append(vector)
    return torch.stack(out) if out else a


def sharpen(points: Tensor, a: Tensor, settings: DirectionSettings) -> Tensor:
    """Return the vectors (S, B), each fitted to its own smallest entries.

    At first it is the vector of least ``Σ_j |R_j · a|`` with the same component along the start,
    by reweighted least squares. Where half of the entries vanish this is the sparse vector itself.
    """
    if not len(a):
        return a
    start, p = a, (a @ points.T).abs()
    size = p.quantile(settings.sharpen_part, dim=1, keepdim=True)
    eye = 1e-14 * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    for step in range(settings.l1_steps + settings.log_steps):
        weights = 1 / (p.square() + size.square()).sqrt()
        if step >= settings.l1_steps:
            weights, start = weights.square(), a
        weights = weights / weights.sum(1, keepdim=True)
        grams = torch.stack([(points * w[:, None]).T @ points for w in weights])
        a = unit_rows(torch.linalg.solve(grams + eye, start))
        p = (a @ points.T).abs()
        rate = settings.l1_rate if step < settings.l1_steps else settings.log_rate
        size = (size * rate).clamp_min(1e-9)
    return a


def draw(
    points: Tensor,
    a: Tensor,
    known: Tensor,
    settings: DirectionSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return, for each vector (S, B), the best null vector of random sets of small entries.

    Vectors that are known (K, B) do not count.
    """
    B, known = points.shape[1], unit_rows(known)
    count = min(max(int(settings.pool * B), B + settings.margin), len(points))
    out = []
    for vector in a:
        for _ in range(settings.draw_steps):
            pool = (points @ vector).abs().topk(count, largest=False).indices
            keys = torch.rand(settings.draws, count, generator=generator).to(points)
            chosen = pool[keys.argsort(1)[:, : B - 1]]
            rows = torch.cat([points[chosen], vector.expand(len(keys), 1, B)], 1)
            target = torch.zeros_like(rows[:, :, :1])
            target[:, -1] = 1
            null, failed = torch.linalg.solve_ex(rows, target)
            null = unit_rows(null[..., 0][failed == 0].nan_to_num(0, 0, 0))
            judged = (null @ points.T).abs().quantile(settings.judged_part, dim=1)
            judged = torch.where(null.norm(dim=1) > 0.5, judged, torch.inf)
            old = ((null @ known.T).abs() >= settings.same).any(1)
            judged = torch.where(old, torch.inf, judged)
            vector = null[judged.argmin()]
        out.append(vector)
    return torch.stack(out) if out else a


Way = Callable[[Tensor, Tensor, DirectionSettings], Tensor]  # from nearly sparse to sparse vectors


def sparse_directions(R: Tensor, errors: Tensor, settings: DirectionSettings) -> Directions:
    """Return the sparse vectors of the column space of ``R`` (m, B), as many as were found.

    Args:
        R: the points, one row for each unit.
        errors: the standard error (m,) of each row's entries.
        settings: how to search.
    """
    lines = lone_lines(R, errors)
    if len(lines) and R.shape[1] > 1:
        found = _beside_lines(R, errors, lines, settings)
        if len(found) == R.shape[1]:
            return found
    return _search(R, errors, R[:0], settings)


def _beside_lines(
    R: Tensor, errors: Tensor, lines: Tensor, settings: DirectionSettings
) -> Directions:
    """Return the sparse vectors, where ``lines`` (K, B) are the rows of units of K samples alone.

    The vectors of the other samples are orthogonal to all lines, and that of one of the K samples
    to all lines but its own: both searches are in fewer dimensions. There, the other samples no
    longer count, so that more units are of one sample alone and new lines appear.
    """
    missing = R.shape[1] - len(lines)
    rest = torch.linalg.svd(lines)[2][len(lines) :].T  # (B, B − K)
    if missing:
        others = sparse_directions(R @ rest, errors, settings).vectors @ rest.T
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
            more = _search(within, errors, near, settings)
            if len(more) != missing + 1:
                return Directions.none(R)
            own = (more.vectors @ basis.T)[-1]
        vectors.append(own[None])
    alive = _alive(R, errors, settings)
    inverse = torch.linalg.inv(rounded_cloud(R[alive], settings)[1])
    found = exact_directions(R, errors, alive, torch.cat(vectors), settings)
    return joined_directions(Directions.none(R), found, inverse)


def _alive(R: Tensor, errors: Tensor, settings: DirectionSettings) -> Tensor:
    """Return which units (m,) were on for some sample."""
    return torch.gt(R.norm(dim=1), settings.zero_errors * errors * R.shape[1] ** 0.5)


def _search(R: Tensor, errors: Tensor, known: Tensor, settings: DirectionSettings) -> Directions:
    """Return the sparse vectors of the space of ``R`` (m, B), those near to known ones first."""
    generator = torch.Generator().manual_seed(settings.seed)
    B, alive = R.shape[1], _alive(R, errors, settings)
    if B == 1:  # one sample is left, and the space is its own
        return Directions(R.new_ones(1, 1), ~alive[None], R.new_tensor([torch.inf]))
    if int(alive.sum()) < B + settings.margin:
        return exact_directions(R, errors, alive, known, settings)
    points, T = rounded_cloud(R[alive], settings)
    inverse = torch.linalg.inv(T)
    exact = exact_directions(R, errors, alive, known, settings)
    found = joined_directions(Directions.none(R), exact, inverse)
    for number in range(settings.rounds):
        if len(found) >= B:
            break
        before = len(found)
        near = found.vectors @ inverse.T
        new = distinct(climb(points, near, number % 2 == 1, settings, generator), near, settings)
        for way in (fit_smallest, sharpen, _draw_around(near, settings, generator)):
            sharp = way(points, new, settings) @ T.T
            more = exact_directions(R, errors, alive, sharp, settings)
            found = joined_directions(found, more, inverse)
            if len(found) > before:  # the slower ways are for what the quicker ones leave
                break
    return found


def _draw_around(near: Tensor, settings: DirectionSettings, generator: torch.Generator) -> Way:
    """Return the way that looks around what was climbed and away from what is known."""

    def way(points: Tensor, new: Tensor, _: DirectionSettings) -> Tensor:
        tried = torch.cat([new, starts(near, settings.drawn_vectors, settings, generator)])
        return draw(points, tried[: settings.drawn_vectors], near, settings, generator)

    return way
