"""Recover the label of one sample behind several steps of all layers.

With an input that the first layer gives, the update of every layer is a known, differentiable
function of the label's C numbers: Gauss–Newton solves it, and running the client again on the
answer, layer by layer, is the certificate. Without, the head's update is searched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.func import jacfwd, vmap

from softleak.core.client import LocalProgram, SgdSteps, mean_gradient, mean_of_head
from softleak.core.errors import ModelError, SoftleakError
from softleak.core.factors import FEWEST_ROUNDINGS, factor
from softleak.core.families import AnyLabel, Binary, Family, SmoothedBinary
from softleak.core.forward import forward_one, random_tensor, recorded_inputs
from softleak.core.knowledge import Knowledge
from softleak.core.loss import CROSS_ENTROPY, Loss
from softleak.core.results import Candidate, Recovery, Status
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.labels.certify import simplest_family
from softleak.labels.curve import on_simplex, spread_of
from softleak.labels.local.head_alone import LABEL_EQUATIONS_OUTSIDE, RecursionCurve, trains_bias
from softleak.labels.search import local_minima
from softleak.labels.solve import WIDEST
from softleak.numerics.least_squares import Differentiated, Levenberg

MOVING_DRIFT = 0.3  # of a feature's length: how far it may move over all steps
MOVING_BEND = 0.03  # of its length: how far it may be from the line between its ends
MOVING_LABEL_ERROR = 1e-6  # how far entries may be from the family, and from the sum one
MOVING_SECOND = 0.35  # of the first singular value: a larger second one is no single sample's


@dataclass(frozen=True, eq=False)
class MovingHead:
    """The head's update of one sample in a basis of its row space, a trained bias included."""

    target: Tensor  # the update less its decay (C, r)
    weight: Tensor  # the head's weight (C, r) in the same basis
    bias: Tensor  # its bias (C,), if it is not trained; else zeros
    noise: Tensor  # the standard error of an entry of the target, for every column (r,)
    recipe: SgdSteps  # the steps
    basis: Tensor  # the basis (r, I)
    family: Family  # the family that the label is of

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the number of classes, and of directions of features that the update shows."""
        return len(self.target), len(self.basis)

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
        # Where all ``p − y`` are parallel, a way of the feature leaves no second row in the update,
        # but moves the logits. Layers before the head are taught along the head's own weights.
        push = head.W.double().T @ columns[:, 0]
        own = push - basis.T @ (basis @ push)
        if float(own.norm()) > torch.finfo(own.dtype).eps * float(push.norm()):
            basis = torch.cat([basis, own[None] / float(own.norm())])
        target, weight, b = moved @ basis.T, head.W.double() @ basis.T, head.b.double()
        errors = target.new_full((len(basis),), noise)
        if trains_bias(subject, share):
            of_bias = mean[head.bias_name].double()[:, None] * recipe.total
            target, weight = torch.cat([target, of_bias], 1), torch.cat([weight, b[:, None]], 1)
            error = errors.new_tensor([_noise(subject, share, head.bias_name)])
            errors, b = torch.cat([errors, error]), torch.zeros_like(b)
        return cls(target, weight, b, errors, recipe, basis, family)

    def moves(self, y: Tensor, features: Tensor) -> list[Tensor]:
        """Return what has moved (C, r) before each step of features (K, r), and at the end."""
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
        """Return the residual where the feature moves on a line; ``z`` is the label, first, way."""
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


# Walks of starts to where the update leads, each by itself.
QUICK = Levenberg(iterations=30, damping=1e-3, relaxed=0.1, checkpoints=())
SLOW = replace(QUICK, iterations=100)

WHOLE_HEAD_READINGS = 4  # scalars at which a feature that stays comes nearest to the family
WHOLE_HEAD_WAYS = (-0.2, -0.05, 0.05, 0.2)  # of its length: ways that are tried
WHOLE_HEAD_DIRECTIONS = 3  # directions of these ways: the last ones of the basis
WHOLE_HEAD_KEPT = 6  # starts that are followed further, those nearest to the update
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
    """Return (B, C + 2 r) labels, features and ways: what the update means if features stay."""
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
    still = z[:, None, classes : classes + rank].expand(-1, equations.recipe.steps, -1)
    moves = [equations.moves(*one) for one in zip(z[:, :classes], still, strict=True)]
    sizes = torch.stack([torch.stack([moved.norm() for moved in one]) for one in moves])
    along = sizes[:, :-1] / sizes[:, -1:].clamp_min(1e-300)  # (B, K) of its way, before each step
    every = torch.arange(len(z), device=z.device)
    z, size, _ = QUICK.minimise(Differentiated(equations.on_a_line, (along, length)), z, every)
    near = size.argsort()[:WHOLE_HEAD_KEPT]
    z, along, length = z[near], along[near], length[near]
    y, first, way = torch.split(z, [classes, rank, rank], 1)
    line = first[:, None] + along[..., None] * way[:, None]
    begin = torch.cat([y, line.flatten(1)], 1)
    problem = Differentiated(equations.anywhere, (line, length))
    found, size, _ = SLOW.minimise(problem, begin, every[: len(begin)])
    best = size.argmin()
    return found[best], length[best]


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


def input_layer(subject: Subject) -> str | None:
    """Return the fully connected layer with a bias that the input enters as it is, if any."""
    shape = subject.tensor_shape
    if shape is None:
        return None
    x = random_tensor(shape, 0, torch.Generator().manual_seed(0))
    modules = subject.model.named_modules()
    linear = [n for n, m in modules if isinstance(m, nn.Linear) and m.bias is not None]
    try:
        with torch.no_grad(), recorded_inputs(subject.model, *linear) as entered:
            forward_one(subject.model, x)
    except SoftleakError:
        return None
    for name, calls in entered.items():
        whole = len(calls) == 1 and calls[0].shape == (1, x.numel())
        if whole and torch.equal(calls[0].flatten().to(x), x.flatten()):
            return name
    return None


def read_input(subject: Subject, mean: GradientShare) -> tuple[Tensor, float] | None:
    """Return the input (1, …) behind a ``mean_gradient``, and the standard error of an entry.

    None if no first layer gives one sample's.
    """
    name = subject.once(input_layer)
    weight, bias = f"{name}.weight", f"{name}.bias"
    if name is None or weight not in mean or bias not in mean:
        return None
    G, d = mean[weight].double(), mean[bias].double()
    size = float(d.square().sum())
    if size == 0:
        return None
    x = d @ G / size
    relative = mean.resolution(weight, subject.head.dtype)
    noise = mean.noise(weight) + relative * float(G.abs().max())
    own = mean.noise(bias) + relative * float(d.abs().max())
    left = float((G - torch.outer(d, x)).norm())
    # The rows of the bias round too, times the input.
    expected = float(G.numel() ** 0.5 * noise + own * len(d) ** 0.5 * x.norm())
    if left > FEWEST_ROUNDINGS * expected:
        return None
    # What is left of all rows shows how large the roundings really were.
    seen = min(max(left / expected, torch.finfo(torch.double).eps), 1.0)
    error = seen * (noise + own * float(x.square().mean().sqrt())) / size**0.5
    return x.reshape(1, *subject.expected_tensor_shape), error


SIMPLE_POINTS = 9  # labels on the line between two corners, their ends among them
SIMPLE_MIXED = 4  # classes of which every pair is tried, those that an update raises first
SIMPLE_KEPT = 4  # lines that are looked at again, those nearest to the update
SIMPLE_LEVELS = 5  # times that a line is cut around its best point
SIMPLE_AT_ONCE = 16  # clients that are run together


def nearest_simple(residual: Callable[[Tensor], Tensor], start: Tensor) -> list[Tensor]:
    """Return smoothed and mixed labels (C,) that come near an update, the nearest first."""
    corners = torch.eye(len(start), dtype=start.dtype, device=start.device)
    likely = start.argsort(descending=True)[:SIMPLE_MIXED].tolist()
    lines = [(one, torch.full_like(one, 1 / len(start))) for one in corners]
    lines += [(corners[i], corners[j]) for i, j in combinations(likely, 2)]
    ends = torch.stack([torch.stack(line) for line in lines])  # (N, 2, C)
    part = torch.linspace(0, 1, SIMPLE_POINTS, dtype=start.dtype, device=start.device)
    left, right = torch.zeros(len(ends)).to(start), torch.ones(len(ends)).to(start)
    for _ in range(SIMPLE_LEVELS):
        where = torch.lerp(left[:, None], right[:, None], part)
        labels = torch.lerp(ends[:, None, 0], ends[:, None, 1], where[..., None])
        parts = torch.split(labels.flatten(0, 1), SIMPLE_AT_ONCE)
        sizes = torch.cat([vmap(residual)(some).norm(dim=1) for some in parts])
        far = sizes.nan_to_num(torch.inf).reshape(where.shape)
        lowest, at = far.min(1)
        keep = lowest.argsort()[:SIMPLE_KEPT]
        ends, where, at, labels = ends[keep], where[keep], at[keep, None], labels[keep]
        left = where.gather(1, (at - 1).clamp_min(0))[:, 0]
        right = where.gather(1, (at + 1).clamp_max(SIMPLE_POINTS - 1))[:, 0]
    best = labels.gather(1, at[..., None].expand(-1, 1, labels.shape[-1]))[:, 0]
    return list(best)


UNROLLED_WALK = Levenberg(iterations=12, damping=1e-9, relaxed=0.1, checkpoints=())
UNROLLED_ROUNDINGS = 16.0  # roundings of a layer's largest entry in the update of one entry
UNROLLED_FITS = 4.0  # root mean square, in errors: a layer that fits is below
UNROLLED_ERROR_BARS = 16.0  # standard errors that bound the label's error


@dataclass(frozen=True, eq=False)
class Unrolled:
    """The client as a function: the update in units of its error, layer after layer.

    The first layer sees the one input ``x`` alone. Along it the layer is a column ``W x/‖x‖`` with
    the input ``‖x‖``, which SGD trains alike; across it nothing moves but by weight decay.
    """

    program: LocalProgram
    x: Tensor  # (1, 1), the length of the input
    weights: dict[str, Tensor]
    sent: Tensor  # (M,)
    error: Tensor  # (M,)
    sizes: tuple[int, ...]

    @classmethod
    def of(
        cls, subject: Subject, share: GradientShare, recipe: SgdSteps, x: Tensor, loss: Loss
    ) -> Unrolled:
        """Return the client of a share on the input ``x``, in float64."""
        model = copy.deepcopy(subject.model).double()
        name, length = subject.once(input_layer), float(x.norm())
        layer = model.get_submodule(name or "")
        if not isinstance(layer, nn.Linear):
            raise ModelError("expected a linear layer that is applied to the input")
        column = (x.flatten() / length)[:, None]
        layer.weight, layer.in_features = nn.Parameter(layer.weight.detach() @ column), 1
        first = f"{name}.weight"
        updates = {n: u.double() @ column if n == first else u.double() for n, u in share.items()}
        moved = [n for n, _ in model.named_parameters() if n in share and bool(share[n].any())]
        for one, parameter in model.named_parameters():
            parameter.requires_grad_(one in moved)
        named, dtype = dict(model.named_parameters()), subject.head.dtype
        errors = []
        for n in moved:
            relative = share.resolution(n, dtype) * float(updates[n].abs().max())
            level = share.noise(n) + UNROLLED_ROUNDINGS * relative
            errors.append(torch.full_like(updates[n].flatten(), level))
        stated = {k: v for k, v in asdict(recipe).items() if k != "rates"}  # one rate for all steps
        return cls(
            LocalProgram.of(model, loss, LocalTraining(**stated)),
            x.new_full((1, 1), length),
            {n: named[n].detach() for n in moved},
            torch.cat([updates[n].flatten() for n in moved]),
            torch.cat(errors),
            tuple(updates[n].numel() for n in moved),
        )

    def residual(self, y: Tensor) -> Tensor:
        """Return (M,) how far a run on the label ``y`` (C,) is from the update."""
        after = self.program.run(self.weights, self.x, y[None])
        made = torch.cat([(self.weights[n] - after[n]).flatten() for n in self.weights])
        return (made - self.sent) / self.error

    def worst(self, rest: Tensor) -> float:
        """Return the root mean square of the residual of the layer where it is largest."""
        parts = torch.split(rest, list(self.sizes))
        return max(float(part.square().mean().sqrt()) for part in parts)


def recover_whole(
    subject: Subject, knowledge: Knowledge, share: GradientShare, recipe: SgdSteps,
    loss: Loss = CROSS_ENTROPY,
) -> Recovery | None:  # fmt: skip
    """Recover one sample's label where its input is read; a run of the client proves it."""
    if subject.once(input_layer) is None:
        return None
    mean = mean_gradient(subject, share, recipe)
    found = read_input(subject, mean)
    if found is None:
        return None
    x, x_error = found
    try:
        client = Unrolled.of(subject, share, recipe, x, loss)
        start, feature, scalar = _one_step(subject, client, mean, loss)
    except Exception:  # the model's own code may refuse a shorter input
        return None
    label, slope = _solve(client, start, loss)
    rest = client.residual(label)
    worst = client.worst(rest)
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x.device)
    beside = Unrolled.of(subject, share, recipe, x + x_error * draw, loss)
    # The label's L1 error by rounding of the update, and by that of the input. The residual of the
    # worst layer says how large the roundings really were.
    covariance = torch.linalg.inv_ex(slope.T @ slope).inverse
    bars = covariance.diagonal().clamp_min(0).sqrt().nan_to_num(torch.inf)
    shift = beside.residual(label) - rest
    moved = (covariance @ (slope.T @ shift)).nan_to_num(torch.inf)
    error = UNROLLED_ERROR_BARS * float(worst * bars.sum() + moved.abs().sum())
    fits = worst <= UNROLLED_FITS and bool(label.isfinite().all())
    outside = max(loss.least - float(label.min()), float(label.max()) - loss.most)
    possible = fits and outside <= error and error <= knowledge.tolerance
    clean, kind = _simple(label, error, loss)
    possible = possible and (loss.balanced or kind is not None)  # zeros and ones test the loss
    candidate = Candidate(scalar, scalar, scalar, worst, fits, label, label[None], error)
    status = Status.UNIQUE if possible else (Status.AMBIGUOUS if fits else Status.NO_SOLUTION)
    answer = Recovery(
        status, _words(status, worst, error), scalar=scalar, error=error,
        feature_error=x_error, candidates=(candidate,), complete=possible, loss=loss,
    )  # fmt: skip
    return replace(answer, label=clean, feature=feature, family=kind) if fits else answer


def _simple(label: Tensor, error: float, loss: Loss) -> tuple[Tensor, Family | None]:
    """Return a label (C,) as its loss takes it, and the simplest family it belongs to."""
    if loss.balanced:
        clean = on_simplex(label)
        return clean, simplest_family(clean, error)
    tags = loss.least == 0.0 and loss.most == 1.0
    for kind in (Binary(), SmoothedBinary()) if tags else ():
        if float((kind.project(label) - label).abs().sum()) <= error:
            return kind.project(label), kind
    return label, None


def _one_step(
    subject: Subject, client: Unrolled, mean: GradientShare, loss: Loss
) -> tuple[Tensor, Tensor, float]:
    """Return the label (C,) that one step would mean, the feature and the scalar of ``p − y``."""
    model, name = client.program.model, subject.head.name
    with torch.no_grad(), recorded_inputs(model, name) as seen:
        z = model(client.x)[0]
    feature = seen[name][0][0].detach()
    delta = mean[subject.head.weight_name].double() @ feature / feature.square().sum()
    return loss.label(z, delta), feature, float(delta.norm())


def _solve(client: Unrolled, start: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the label (C,) whose update is nearest, and the residual's derivative (M, C).

    Masks of ReLUs flip along the way. If the label that one step would mean does not lead there,
    simple labels are tried one by one, and those that come nearest are where it begins again.
    """
    problem, none = Differentiated(client.residual), torch.zeros(1, dtype=torch.long)
    enough = UNROLLED_FITS**2 * len(client.sent)
    best, least, _ = UNROLLED_WALK.minimise(problem, start[None], none)
    others = nearest_simple(client.residual, start) if loss.balanced else [(start > 0.5).to(start)]
    for label in others if float(least) > enough else ():
        found, cost, _ = UNROLLED_WALK.minimise(problem, label[None], none)
        best, least = (found, cost) if float(cost) < float(least) else (best, least)
        if float(least) <= enough:
            break
    return best[0], jacfwd(client.residual)(best[0])


def _words(status: Status, worst: float, error: float) -> str:
    if status is Status.NO_SOLUTION:
        return (
            "the first layer gives one input, but no label of it makes this client's update: its "
            f"worst layer is off by {worst:.2g} times what rounding explains"
        )
    again = "a run of the client on the recovered input and label gives the update of every layer"
    if status is Status.UNIQUE:
        return f"{again} to within rounding"
    return (
        f"{again}, with a label known to {error:.2g} in L1; but it is no label that its loss "
        "takes, or not known closely, or of no simple kind, so that nothing tests the loss"
    )
