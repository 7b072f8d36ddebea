"""All layers are trained on one sample whose input the first layer gives: only the label is open.

With the input known, the update of every layer is a known, differentiable function of the label's C
numbers: Gauss–Newton solves it, and running the client again on the answer, layer by layer, is the
certificate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacfwd, vmap

from softleak.core.client import LocalProgram
from softleak.core.errors import ModelError
from softleak.core.factors import RANK
from softleak.core.forward import random_tensor
from softleak.core.knowledge import Knowledge
from softleak.core.results import Candidate, Recovery, Status
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.core.update import SgdSteps, mean_gradient
from softleak.labels.certify import simplest_family
from softleak.labels.curve import on_simplex
from softleak.numerics.recorder import recorded_inputs


@dataclass(frozen=True, eq=False)
class ReadInput:
    """An input (1, …) of one sample, and the standard error of an entry."""

    x: Tensor
    error: float


def first_linear(subject: Subject) -> str | None:
    """Return the name of a linear layer with a bias that is applied to the flattened input."""
    if subject.tensor_shape is None:
        return None
    like = next(subject.model.parameters())
    drawn = random_tensor(subject.tensor_shape, 0, torch.Generator().manual_seed(0))
    x = drawn[None].to(like.device, like.dtype)
    linear = [
        name for name, module in subject.model.named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None
    ]  # fmt: skip
    try:
        with torch.no_grad(), recorded_inputs(subject.model, *linear) as seen:
            subject.model(x)
    except Exception:  # the model's own code may raise anything
        return None
    ran = {name: given[-1].flatten() for name, given in seen.items() if given}
    return next((name for name, given in ran.items() if torch.equal(given, x.flatten())), None)


def read_input(subject: Subject, mean: GradientShare) -> ReadInput | None:
    """Return the input behind a ``mean_gradient``; None if no first layer gives one sample's."""
    name = subject.once(first_linear)
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
    if left > RANK.fewest_roundings * expected:
        return None
    # What is left of all rows shows how large the roundings really were.
    seen = min(max(left / expected, torch.finfo(torch.double).eps), 1.0)
    error = seen * (noise + own * float(x.square().mean().sqrt())) / size**0.5
    return ReadInput(x.reshape(1, *subject.expected_tensor_shape), error)


# What trys the labels of simple families, coarse to fine.
SIMPLE_POINTS = 9  # labels on the line between two corners, their ends among them
SIMPLE_MIXED = 4  # classes of which every pair is tried, those that an update raises first
SIMPLE_KEPT = 4  # lines that are looked at again, those nearest to the update
SIMPLE_LEVELS = 5  # times that a line is cut around its best point
SIMPLE_AT_ONCE = 16  # clients that are run together


Residual = Callable[[Tensor], Tensor]  # from a label (C,) to how far its update is off (M,)


def nearest_simple(residual: Residual, start: Tensor) -> list[Tensor]:
    """Return smoothed and mixed labels (C,) that come near an update, the nearest first.

    The largest entries of ``start``, what one step would mean, are the classes that may be mixed.
    """
    ends = _lines(start)
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


def _lines(start: Tensor) -> Tensor:
    """Return both ends (N, 2, C) of the lines of smoothed labels and of mixes of likely classes."""
    corners = torch.eye(len(start), dtype=start.dtype, device=start.device)
    flat = torch.full_like(corners, 1 / len(start))
    smoothed = torch.stack([corners, flat], 1)
    likely = start.argsort(descending=True)[:SIMPLE_MIXED].tolist()
    pairs = [torch.stack([corners[i], corners[j]]) for i, j in combinations(likely, 2)]
    return torch.cat([smoothed, torch.stack(pairs)]) if pairs else smoothed


# What solves an unrolled client for its label, and judge the answer.
UNROLLED_ITERATIONS = 12  # steps of Gauss–Newton
UNROLLED_HALVINGS = 6  # times a step is halved until it comes nearer
UNROLLED_SETTLED = 1e-10  # L1: a step shorter than this ends it
UNROLLED_LONGEST = 1.0  # L1: the longest step
UNROLLED_ROUNDINGS = 16.0  # roundings of a layer's largest entry in the update of one entry
UNROLLED_FITS = 4.0  # root mean square, in errors: a layer that fits is below
UNROLLED_ERROR_BARS = 16.0  # standard errors that bound the label's error
UNROLLED_SEED = 0  # the seed of the direction in which the input's own error is tried


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
    def of(cls, subject: Subject, share: GradientShare, recipe: SgdSteps, x: Tensor) -> Unrolled:
        """Return the client of a share on the input ``x``, in float64."""
        model = copy.deepcopy(subject.model).double()
        name, length = subject.once(first_linear), float(x.norm())
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
        named = dict(model.named_parameters())
        errors = [_error(share, n, updates[n], subject.head.dtype) for n in moved]
        return cls(
            LocalProgram.of(model, F.cross_entropy, LocalTraining(**asdict(recipe))),
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

    def misfits(self, rest: Tensor) -> list[float]:
        """Return the root mean square of the residual of every layer."""
        return [float(part.square().mean().sqrt()) for part in torch.split(rest, list(self.sizes))]


def _error(share: GradientShare, name: str, update: Tensor, dtype: torch.dtype) -> Tensor:
    relative = share.resolution(name, dtype)
    level = share.noise(name) + UNROLLED_ROUNDINGS * relative * float(update.abs().max())
    return torch.full((update.numel(),), level, dtype=torch.double, device=update.device)


def recover_whole(
    subject: Subject, knowledge: Knowledge, share: GradientShare, recipe: SgdSteps
) -> Recovery | None:
    """Recover the label of one sample on which all layers were trained.

    UNIQUE only if a run of the client on it gives the update of every layer; None if the first
    layer does not give the input of one sample.
    """
    if subject.once(first_linear) is None:
        return None
    mean = mean_gradient(subject, share, recipe)
    found = read_input(subject, mean)
    if found is None:
        return None
    try:
        client = Unrolled.of(subject, share, recipe, found.x)
        start, feature, scalar = _one_step(subject, client, mean)
    except Exception:  # the model's own code may refuse a shorter input
        return None
    label, slope = _solve(client, start)
    rest = client.residual(label)
    worst = max(client.misfits(rest))
    generator = torch.Generator().manual_seed(UNROLLED_SEED)
    draw = torch.randn(found.x.shape, generator=generator, dtype=torch.double).to(found.x.device)
    beside = Unrolled.of(subject, share, recipe, found.x + found.error * draw)
    error = _label_error(slope, beside.residual(label) - rest, worst)
    fits = worst <= UNROLLED_FITS and bool(label.isfinite().all())
    possible = fits and float(label.min()) >= -error and error <= knowledge.tolerance
    clean = on_simplex(label)
    candidate = Candidate(scalar, scalar, scalar, worst, fits, label, label[None], error)
    status = Status.UNIQUE if possible else (Status.AMBIGUOUS if fits else Status.NO_SOLUTION)
    answer = Recovery(
        status, _words(status, worst, error), scalar=scalar, error=error,
        feature_error=found.error, candidates=(candidate,), complete=possible,
    )  # fmt: skip
    if not fits:
        return answer
    return replace(answer, label=clean, feature=feature, family=simplest_family(clean, error))


def _one_step(
    subject: Subject, client: Unrolled, mean: GradientShare
) -> tuple[Tensor, Tensor, float]:
    """Return the label (C,) that one step would mean, the feature and the scalar of ``p − y``."""
    model, name = client.program.model, subject.head.name
    with torch.no_grad(), recorded_inputs(model, name) as seen:
        p = torch.softmax(model(client.x)[0], -1)
    feature = seen[name][0][0].detach()
    delta = mean[subject.head.weight_name].double() @ feature / feature.square().sum()
    return p - delta, feature, float(delta.norm())


def _solve(client: Unrolled, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the label (C,) whose update is nearest, and the residual's derivative (M, C).

    Masks of ReLUs flip along the way. If the label that one step would mean does not lead there,
    simple labels are tried one by one, and those that come nearest are where it begins again.
    """
    enough = UNROLLED_FITS * len(client.sent) ** 0.5
    found = [_gauss_newton(client, start)]
    if found[0][2] > enough:
        for label in nearest_simple(client.residual, start):
            found.append(_gauss_newton(client, label))
            if found[-1][2] <= enough:
                break
    return min(found, key=lambda one: one[2])[:2]


def _gauss_newton(client: Unrolled, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the label (C,) a start leads to, the residual's derivative there, and its size."""
    rest = client.residual(y)
    slope = torch.zeros(len(rest), len(y), dtype=y.dtype, device=y.device)
    for _ in range(UNROLLED_ITERATIONS):
        slope = jacfwd(client.residual)(y)
        normal, right = slope.T @ slope, slope.T @ rest
        if not bool(normal.isfinite().all()):
            break
        step = torch.linalg.pinv(normal, hermitian=True) @ right
        step = step * (UNROLLED_LONGEST / step.abs().sum().clamp_min(UNROLLED_LONGEST))
        for _ in range(UNROLLED_HALVINGS):
            tried = client.residual(y - step)
            if float(tried.norm()) < float(rest.norm()):
                break
            step = step / 2
        else:
            break
        y, rest = y - step, tried
        if float(step.abs().sum()) <= UNROLLED_SETTLED:
            break
    return y, slope, float(rest.norm())


def _label_error(slope: Tensor, shift: Tensor, worst: float) -> float:
    """Return a bound of the label's L1 error: rounding of the update, and of the input read.

    ``shift`` (M,) is how much the residual moves if the input moves by its error. The residual of
    the worst layer says how large the roundings really were.
    """
    covariance = torch.linalg.inv_ex(slope.T @ slope).inverse
    bars = covariance.diagonal().clamp_min(0).sqrt().nan_to_num(torch.inf)
    moved = (covariance @ (slope.T @ shift)).nan_to_num(torch.inf)
    return UNROLLED_ERROR_BARS * float(worst * bars.sum() + moved.abs().sum())


def _words(status: Status, worst: float, error: float) -> str:
    if status is Status.NO_SOLUTION:
        return (
            "the first layer gives one input, but no label of it makes this client's update: its "
            f"worst layer is off by {worst:.2g} times what rounding explains"
        )
    again = "a run of the client on the recovered input and label gives the update of every layer"
    if status is Status.UNIQUE:
        return f"{again} to within rounding"
    return f"{again}, but the label is known only to {error:.2g} in L1, or has negative entries"
