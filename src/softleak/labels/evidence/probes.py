"""Which evidence a model offers, found by running it on random inputs with known labels.

No module names are consulted: a relation is used for a parameter if and only if it predicts that
parameter's gradient on probes it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from softleak.capture import capture
from softleak.errors import ModelError
from softleak.factors import factor
from softleak.head import Head
from softleak.inputs import accepted_shapes, random_input
from softleak.labels.evidence.activations import ACTIVATIONS, Activation
from softleak.labels.evidence.head_bias import HeadBias
from softleak.labels.evidence.lattice import Lattice
from softleak.labels.evidence.pointwise import Pointwise
from softleak.labels.evidence.relation import TINY, Relation
from softleak.share import GradientShare
from softleak.verify import find_head

PROBES, FITTED = 4, 2  # the rest check what was fitted
TIGHT = 400.0  # roundings: what a relation may be off on a probe
SURE = 0.01  # a relation that leaves the scalar this uncertain is no evidence
SEED = 0
LOUD, NEARBY = 0.05, 0.25  # channels of a lattice that count, and how far off its points they lie

Built = HeadBias | Pointwise | Lattice


@dataclass(frozen=True, eq=False)
class Probe:
    """One run with everything known: the feature (I,), ``δ`` (C,) and ``d = Wᵀδ`` (I,)."""

    share: GradientShare
    feature: Tensor
    delta: Tensor
    d: Tensor
    positions: dict[str, int]  # spatial size of the output of each parameter's module


def probe(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    *,
    head: str | Head | None = None,
    seed: int = SEED,
) -> tuple[Relation, ...]:
    """The relations that hold for this model, in its present mode (train or eval).

    They are facts of the architecture: compute them once and pass them as ``evidence=``.
    """
    shapes = [input_shape] if input_shape else list(islice(accepted_shapes(model), 2))
    if not shapes:
        raise ModelError(
            "could not tell which input the model takes; pass input_shape, such as (3, 32, 32), "
            "or evidence=False to use the head alone"
        )
    shape = shapes[0]
    if not isinstance(head, Head):
        head = find_head(model, head, shape)
    runs = list(_runs(model, head, shape, seed))
    found: list[Relation] = []
    if all(head.bias_name in run.share for run in runs):
        bias = _checked(HeadBias(head.bias_name), head, runs[FITTED:])
        found += [bias] if bias else []
    # Parameters that some inputs leave out, such as an expert's, get no gradient there.
    always = [n for n in runs[0].share if all(n in run.share for run in runs)]
    for name in always:
        gradient = runs[0].share[name]
        fits = gradient.ndim == 1 and name != head.bias_name and gradient.any()
        if fits and head.W.shape[1] % len(gradient) == 0:
            relation = _relation(name, len(gradient), head, runs)
            found += [relation] if relation else []
    if len(shapes) > 1:
        # Where there are maps, what holds follows from an image size we would only be guessing:
        # their number of positions, or that there is a single one.
        found = [relation for relation in found if relation.parameter not in runs[0].positions]
    return tuple(found)


def _runs(model: nn.Module, head: Head, shape: tuple[int, ...], seed: int) -> Iterator[Probe]:
    generator = torch.Generator().manual_seed(seed)
    devices = [head.W.device] if head.W.is_cuda else []
    for index in range(PROBES):
        label = torch.rand(head.classes, generator=generator, dtype=torch.double).log().neg()
        label = label / label.sum()
        with torch.random.fork_rng(devices), _Watch(model, head) as watch:
            torch.manual_seed(seed + index)  # for dropout in train mode
            share = capture(model, random_input(shape, index, generator), label)
        feature, logits = watch.seen
        delta = logits.softmax(-1) - label.to(logits.device)
        yield Probe(share, feature, delta, head.back(delta[None])[0], watch.positions)


class _Watch:
    """Hooks for the time of one run: what enters and leaves the head, and how large maps are."""

    def __init__(self, model: nn.Module, head: Head) -> None:
        self.seen: tuple[Tensor, Tensor]
        self.positions: dict[str, int] = {}
        self.model, self.head = model, head

    def __enter__(self) -> _Watch:
        modules = self.model.named_modules()
        self.handles = [m.register_forward_hook(partial(self._look, n)) for n, m in modules]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _look(
        self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if name == self.head.name:
            self.seen = inputs[0].detach().double()[0], output.detach().double()[0]
        if isinstance(output, Tensor) and output.ndim > 2:
            for parameter, _ in module.named_parameters(name, recurse=False):
                self.positions[parameter] = output[0, 0].numel()


def _relation(name: str, channels: int, head: Head, runs: Sequence[Probe]) -> Relation | None:
    """The first relation that holds for one parameter, if any."""
    tries: list[Pointwise | Lattice] = []
    for activation in ACTIVATIONS:
        for channels_last in (False, True) if channels < len(runs[0].d) else (False,):
            tries += _fit(name, channels, activation, channels_last, runs[:FITTED])
    positions = runs[0].positions.get(name, 1)
    if channels == len(runs[0].d) and positions > 1:
        tries += _lattice(name, positions, runs[:FITTED])
    checked = (_checked(relation, head, runs[FITTED:]) for relation in tries)
    return next((relation for relation in checked if relation is not None), None)


def _lattice(name: str, positions: int, runs: Sequence[Probe]) -> list[Lattice]:
    """The lattice whose gain explains some probes, if their ratios lie near one at all."""
    counts = torch.cat([positions * run.share[name].double() / run.d for run in runs])
    weight = torch.cat([run.d.abs() / run.d.abs().max() for run in runs])
    nearest = counts.round()
    heard = (weight > LOUD) & (nearest > 0)
    off = (counts - nearest)[heard]
    if not len(off) or float(off.abs().max()) > NEARBY:
        return []
    x, w = nearest[heard], weight[heard]
    gain = 1 + float((w * off * x).sum() / (w * x * x).sum())
    return [Lattice(name, positions, gain)]


def _fit(
    name: str, channels: int, activation: Activation, channels_last: bool, runs: Sequence[Probe]
) -> list[Pointwise]:
    """The coefficients that explain some probes, if any do."""
    peak = max(float(run.feature.abs().max()) for run in runs)
    blank = Pointwise(name, channels, activation, (), peak, channels_last)
    columns = [
        torch.stack([blank.gather(run.d * term) for term in activation.basis(run.feature)], -1)
        for run in runs
    ]
    A = torch.cat(columns).cpu()
    g = torch.cat([run.share[name] for run in runs]).cpu()
    # gelsd: a basis may be degenerate on a model that never visits one side of zero.
    theta = torch.linalg.lstsq(A, g.double()[:, None], driver="gelsd").solution[:, 0]
    if not (A @ theta - g).norm() <= TIGHT * torch.finfo(g.dtype).eps * g.norm():
        return []
    return [replace(blank, coefficients=tuple(theta.tolist()))]


def _checked(relation: Built, head: Head, runs: Sequence[Probe]) -> Built | None:
    """The relation with its accuracy, if it gives the true scalar of probes it has not seen."""
    factors = factor(head, [run.share for run in runs])
    g = torch.stack([run.share[relation.parameter] for run in runs]).double()
    true = (torch.stack([run.delta for run in runs]) * factors.u).sum(-1)
    estimate = relation.solve(g, head, factors)
    tolerance = TIGHT * factors.relative
    off = (estimate.scalar - true).abs() / true.abs().clamp_min(TINY)
    sure = estimate.error <= SURE * true.abs()
    holds = (off <= tolerance) & sure & (estimate.misfit <= tolerance)
    # A gradient of zeros says nothing either way; one of the probes has to speak.
    silent = estimate.misfit.isinf()
    if bool(silent.all()) or not bool((holds | silent).all()):
        return None
    return replace(relation, accuracy=float(off[~silent].max()))
