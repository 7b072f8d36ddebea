"""Find the layers whose gradients are sums over few active samples, and read labels behind them.

The model is run on random inputs and observed; nothing is read from its code. Every piece has to
hold: the scales explain the bias's gradient, each sample's pattern of active units is the one that
the model gives its recovered input, the labels lie in the simplex, and the client simulated on the
whole batch sends this share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import SoftleakError
from softleak.core.factors import SMALLEST_NORMAL
from softleak.core.forward import forward_batch, random_input, watched
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.resimulation import Resimulation, exact_copy, own_copy, resimulate


class FullyConnectedTail(nn.Module):
    """Linear layers with ReLUs between and the head, under the names they have in a network."""

    def __init__(self, subject: Subject, layers: Sequence[str]) -> None:
        super().__init__()
        self._in_order = (*layers, subject.head.name)
        for name in self._in_order:
            *folders, last = name.split(".")
            at: nn.Module = self
            for folder in folders:
                if folder not in dict(at.named_children()):
                    at.add_module(folder, nn.Module())
                at = at.get_submodule(folder)
            at.add_module(last, subject.model.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, C) of what enters the first layer (N, n)."""
        for name in self._in_order[:-1]:
            x = torch.relu(self.get_submodule(name)(x))
        logits: Tensor = self.get_submodule(self._in_order[-1])(x)
        return logits


LAYER_PROBE_INPUTS = 8  # the number of random inputs
LAYER_PROBE_EQUAL = 1e-9  # how far, relative to the largest, sums in another order may differ
LAYER_PROBE_FEWEST_ZEROS = 0.02  # part of the gradients that a ReLU makes zero, at least


class Passed(NamedTuple):
    """One run: a layer's input (B, n), and the output (B, m) that its logits (B, C) depend on."""

    entered: Tensor
    left: Tensor
    logits: Tensor
    calls: int


def run_through(model: nn.Module, name: str, x: Tensor) -> Passed:
    """Run a model on inputs (B, …) and keep what enters and leaves one of its layers."""
    passed = run_layers(model, [name], x)
    if name not in passed:
        raise SoftleakError(f"the layer {name!r} is not used")
    return passed[name]


def run_layers(model: nn.Module, names: Iterable[str], x: Tensor) -> Mapping[str, Passed]:
    """Run a model once and keep what enters and leaves these layers; unused ones are left out."""
    kept: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}

    def keep(name: str, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept[name].append((given[0], output))
        return output.clone()  # an activation in place would overwrite what is kept

    modules = {name: model.get_submodule(name) for name in kept}
    with watched(modules, after=keep), torch.enable_grad():
        logits = forward_batch(model, x)
    return {name: Passed(*calls[0], logits, len(calls)) for name, calls in kept.items() if calls}


def first_layer(subject: Subject) -> str | None:
    """Return the name of a fully connected layer that reads the input itself, before a ReLU."""
    return next((name for name in _linears(subject) if _is_first(subject, name)), None)


def layers_before_head(subject: Subject) -> tuple[str, ...]:
    """Return the fully connected layers before the head, the nearest first, with ReLUs between."""
    names, after = _linears(subject), subject.head.name
    if not names:
        return ()
    try:
        model, x = subject.once(exact_copy), _random_inputs(subject)[:2]
        run = run_layers(model, [*names, after], x)
    except SoftleakError:
        return ()
    found: list[str] = []
    while names and after in run:
        before = [n for n in names if n in run and _feeds(model, n, run[n], run[after])]
        if not before:
            break
        after = before[0]
        names = [name for name in names if name != after]
        found.append(after)
    return tuple(found)


def is_homogeneous(subject: Subject) -> bool:
    """Tell whether twice the input gives twice the logits, as without biases it does."""
    model, x = subject.once(exact_copy), _random_inputs(subject)
    once, twice = forward_batch(model, x), forward_batch(model, 2 * x)
    return _close(twice, 2 * once)


def _linears(subject: Subject) -> list[str]:
    if subject.tensor_shape is None:
        return []
    modules = subject.model.named_modules()
    return [n for n, m in modules if isinstance(m, nn.Linear) and n != subject.head.name]


def _random_inputs(subject: Subject) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = subject.expected_tensor_shape
    drawn = [random_input(shape, index, generator) for index in range(LAYER_PROBE_INPUTS)]
    return torch.stack([each for each in drawn if isinstance(each, Tensor)]).double()


def _is_first(subject: Subject, name: str) -> bool:
    model, x = subject.once(exact_copy), _random_inputs(subject)
    try:
        run, alone = run_through(model, name, x), run_through(model, name, x[:1])
    except SoftleakError:
        return False
    if run.calls != 1 or run.entered.shape != x.flatten(1).shape:
        return False  # A layer in between is of another size.
    read = torch.equal(run.entered, x.flatten(1).to(run.entered))
    if not read or not _is_plain(model, name, run):
        return False
    if not _close(run.logits[:1], alone.logits):
        return False
    generator = torch.Generator().manual_seed(0)
    pull = torch.randn(run.logits.shape, generator=generator, dtype=torch.double).to(run.logits)
    slopes = torch.autograd.grad((run.logits * pull).sum(), run.left)[0]
    return float((slopes == 0).double().mean()) >= LAYER_PROBE_FEWEST_ZEROS


def _feeds(model: nn.Module, name: str, run: Passed, after: Passed) -> bool:
    """Return whether what leaves a linear layer enters the next one behind a ReLU."""
    if run.calls != 1 or after.calls != 1 or run.left.shape != after.entered.shape:
        return False
    return _is_plain(model, name, run) and torch.equal(after.entered, run.left.clamp_min(0))


def _is_plain(model: nn.Module, name: str, run: Passed) -> bool:
    """Return whether a linear layer's output is ``W x + b``, whatever its forward does."""
    linear = model.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return _close(run.left, F.linear(run.entered, linear.weight, linear.bias))


def _close(found: Tensor, expected: Tensor) -> bool:
    size = float(expected.detach().abs().max())
    return bool((found - expected).abs().max() <= LAYER_PROBE_EQUAL * size)


SLOPES_AT_ONCE = 1 << 25  # entries of J held at once, in float64


KINKS_RUNS = 16  # how often the inputs are moved by a rounding
KINKS_GROWTH = 1.25  # the factor by which these movements grow from one to the next
KINKS_MISFIT = 8.0  # standard errors, root mean square: from here a fit is tried again


class Differences(NamedTuple):
    """What the gradients of N samples say of ``p − y``, and how well it fits."""

    p: Tensor  # (N, C) the predictions
    delta: Tensor  # (N, C) the sample's part ``δ'`` of the mean of ``p − y``
    errors: Tensor  # (N, C) the standard error of ``delta``
    misfit: Tensor  # (N,) the root mean square of what the fit leaves of ``D``, in standard errors

    def better(self, other: Differences) -> Differences:
        """Return, sample by sample, the one of the two that fits better."""
        mine = (self.misfit <= other.misfit)[:, None]
        own, others = self[:3], other[:3]
        p, delta, errors = (torch.where(mine, *pair) for pair in zip(own, others, strict=True))
        return Differences(p, delta, errors, self.misfit.minimum(other.misfit))


def differences(
    model: nn.Module, layer: str, x: Tensor, D: Tensor, errors: Tensor, rounding: float
) -> Differences:
    """Return what gradients ``D`` (N, m) at a layer's output say of ``p − y`` at inputs (N, …)."""
    generator = torch.Generator().manual_seed(0)
    best = _all_samples(model, layer, x, D, errors)
    for run in range(KINKS_RUNS):
        poor = best.misfit > KINKS_MISFIT
        if not poor.any():
            break
        moves = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        far = 2 * rounding * KINKS_GROWTH**run  # the client's sums may have rounded further
        again = _all_samples(model, layer, x * (1 + far * moves), D, errors)
        best = best.better(again._replace(p=best.p))
    return best


def _all_samples(model: nn.Module, layer: str, x: Tensor, D: Tensor, errors: Tensor) -> Differences:
    classes = run_through(model, layer, x[:1]).logits.shape[1]
    at_once = max(SLOPES_AT_ONCE // (classes * D.shape[1]), 1)
    parts = [
        _fit_samples(run_through(model, layer, some), *own)
        for some, *own in zip(*(torch.split(each, at_once) for each in (x, D, errors)), strict=True)
    ]
    return Differences(*map(torch.cat, zip(*parts, strict=True)))


def _fit_samples(run: Passed, D: Tensor, errors: Tensor) -> Differences:
    """Fit ``D_i = J_iᵀ δ_i`` with ``Σ_c δ_ic = 0``, weighted by the errors."""
    classes = run.logits.shape[1]
    slopes = [
        torch.autograd.grad(run.logits[:, c].sum(), run.left, retain_graph=True)[0]
        for c in range(classes)
    ]
    J = torch.stack(slopes, 1)  # (N, C, m)
    weighted = J / errors[:, None]
    # The unknowns are δ without its part along (1, …, 1), which is zero.
    basis = torch.linalg.svd(torch.ones(1, classes, dtype=J.dtype, device=J.device))[2][1:]
    A = torch.einsum("kc,ncm->nkm", basis, weighted)
    size = A.flatten(1).norm(dim=1).clamp_min(SMALLEST_NORMAL)[:, None, None]
    gram = (A / size) @ (A / size).transpose(1, 2)
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    right = ((A / size) @ (D / errors)[:, :, None]) / size
    t = inverse @ right
    left = (A.transpose(1, 2) @ t)[..., 0] - D / errors
    covariance = basis.T @ (inverse / size.square()) @ basis
    unseen = torch.linalg.matrix_rank(gram, hermitian=True, rtol=1e-13) < classes - 1
    deviation = covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    deviation = torch.where(unseen[:, None], torch.inf, deviation)
    freedom = max(D.shape[1] - classes + 1, 1)
    misfit = left.square().sum(1).div(freedom).sqrt()
    p = run.logits.detach().softmax(1)
    return Differences(p, (t[..., 0] @ basis), deviation, misfit)


class Weighing(NamedTuple):
    """Which weight the found inputs have in the mean over the batch: ``y = p − δ'/weight``."""

    weight: float  # the weight that every found input is given
    errors: Tensor  # (N,) by how much, in L1, labels may be off because weights are not certain
    why: str = ""  # why the weight is not certain, as a sentence; empty if it is


def weigh(p: Tensor, delta: Tensor, errors: Tensor, knowledge: Knowledge) -> Weighing:
    """Return the weight of samples, of predictions (N, C) and parts ``δ'`` known to ``errors``."""
    found, size = len(p), knowledge.samples
    weight = 1 / max(size or found, found)
    known = torch.zeros_like(p[:, 0])
    anything = delta.abs().sum(1) * torch.inf
    if knowledge.scale != "known":
        why = (
            "Nobody vouches that the share was not multiplied by a factor (clipping, a learning "
            "rate), and labels nearer to the model's own prediction explain a larger one as well."
        )
        return Weighing(weight, anything, why)
    if size is not None and size != found:
        why = (
            f"The batch was said to hold {size} samples, but {found} different inputs are behind "
            "the share; equal inputs act as one, or the size was said wrongly."
        )
        return Weighing(weight, anything, why)
    if size is not None:
        return Weighing(weight, known)
    low = (delta - errors[:, None]).div(p.clamp_min(SMALLEST_NORMAL)).amax(1).clamp(0, weight)
    high = low + (1 - low.sum()).clamp_min(0)  # beyond it another weight would have to shrink
    span = (1 / low - 1 / weight).maximum(1 / weight - 1 / high)
    why = (
        "The size of the batch was not said: the labels hold if no input is in it twice. Equal "
        "inputs act as one whose label is their mean."
    )
    return Weighing(weight, torch.where(low == high, 0.0, delta.abs().sum(1) * span), why)


def predicted(subject: Subject, x: Tensor, error: float) -> tuple[Tensor, Tensor, float]:
    """Return the features (B, I), the error (B,) of ``p`` in L1 and that of features, relative."""

    def seen(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        run = run_through(model, subject.head.name, x)
        return run.entered.detach().double(), run.logits.detach().double().softmax(1)

    generator = torch.Generator().manual_seed(0)
    features, p = seen(subject.once(exact_copy), x)
    p_errors, feature_errors = [], []
    for _ in range(VERDICT_RUNS):
        moves = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        moved, moved_p = seen(subject.once(own_copy), x + error * moves)
        p_errors.append((moved_p - p).abs().sum(1))
        feature_errors.append((moved - features).norm() / features.norm())
    return features, torch.stack(p_errors).amax(0), float(torch.stack(feature_errors).max())


# What a linear fit may leave of its equations, in standard errors of rounding. They are estimates;
# the order of a client's sums is a factor of about 10 (see ``resimulation.TOLERANCE``).
VERDICT_MISFIT = 32.0
VERDICT_BOUNDS = 6.0  # an error bound is this many standard errors
VERDICT_RUNS = 3  # runs with moved inputs, from which the error of predictions is taken


class Inputs(NamedTuple):
    """The gradients ``D`` (B, m) at the first layer's output and the inputs (B, n)."""

    layer: str  # the layer's name
    D: Tensor  # the gradients at its output, sample by sample
    errors: Tensor  # the standard errors (B, m) of ``D``
    X: Tensor  # the inputs
    input_error: float  # the largest standard error of an entry of ``X``
    misfit: float  # what the scales leave of the bias's gradient, in standard errors


def judge(
    subject: Subject, share: GradientShare, knowledge: Knowledge, inputs: Inputs
) -> BatchRecovery:
    """Return the labels of recovered inputs with everything that is proved of them."""
    model, x = subject.once(exact_copy), inputs.X.view(-1, *subject.expected_tensor_shape)
    rounding = share.resolution(f"{inputs.layer}.weight", subject.head.dtype)
    parts = differences(model, inputs.layer, x, inputs.D, inputs.errors, rounding)
    off = VERDICT_BOUNDS * parts.errors * parts.misfit.clamp_min(1)[:, None]
    weighing = weigh(parts.p, parts.delta, off.amax(1), knowledge)
    labels = parts.p - parts.delta / weighing.weight
    features, p_error, feature_error = predicted(subject, x, inputs.input_error)
    # The client's label itself sums to one only up to rounding.
    known = off.sum(1) / weighing.weight + VERDICT_BOUNDS * (p_error + rounding)
    errors = known + weighing.errors
    problems = list(_problems(inputs, parts, labels, known))
    if not problems:
        problems += disagreements(resimulate(subject, share, x, labels))
    spread = [VERDICT_BOUNDS * feature_error] * len(labels)
    said = "inputs", "follow from the gradient of the first layer"
    found = verdict(labels, features, errors, spread, knowledge, said, problems, weighing.why)
    return replace(found, inputs=x, input_error=inputs.input_error)


def status_of(samples: Sequence[Recovery]) -> Status:
    """Return UNIQUE if every sample is, else AMBIGUOUS."""
    alone = all(sample.status is Status.UNIQUE for sample in samples)
    return Status.UNIQUE if alone else Status.AMBIGUOUS


def verdict(
    labels: Tensor, features: Tensor, errors: Tensor, feature_errors: Sequence[float],
    knowledge: Knowledge, said: tuple[str, str], problems: Sequence[str], why: str,
) -> BatchRecovery:  # fmt: skip
    """Return the samples; without problems those are proved whose label error is tolerable."""
    samples: list[Recovery] = []
    for label, feature, off, spread in zip(labels, features, errors, feature_errors, strict=True):
        sure = not problems and float(off) < knowledge.tolerance
        message = (
            f"One label and one {said[0][:-1]} explain this sample." if sure else "Not proved."
        )
        status = Status.UNIQUE if sure else Status.AMBIGUOUS
        samples.append(Recovery(status, message, label, feature, None, float(off), spread))
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    told = "Nothing is proved." if problems else f"The labels of {proved} of them are proved."
    found = f"The {said[0]} of {len(labels)} samples {said[1]}. {told}"
    words = " ".join(filter(None, [found, *problems, why]))
    size = knowledge.samples or len(labels)
    return BatchRecovery(status_of(samples), words, size, tuple(samples))


def _problems(inputs: Inputs, parts: Differences, labels: Tensor, errors: Tensor) -> Iterator[str]:
    """Yield what speaks against the samples, as sentences."""
    if not inputs.misfit <= VERDICT_MISFIT:
        yield (
            f"The scales of the samples leave {inputs.misfit:.3g} standard errors of the bias's "
            "gradient."
        )
    unlike = int((~(parts.misfit <= VERDICT_MISFIT)).sum())
    if unlike:
        yield (
            f"For {unlike} samples no label gives the gradient that was found at the first "
            "layer: noise, several local steps, or another model."
        )
    yield from outside_simplex(labels, errors)


def outside_simplex(labels: Tensor, errors: Tensor) -> Iterator[str]:
    """Yield what labels (N, C) with entries below their errors (N,) say against the samples."""
    outside = int((~(labels.amin(1) >= -errors)).sum())
    if outside:
        yield (
            f"The labels of {outside} samples have negative entries: the share was multiplied by "
            "a factor, or the size of the batch is another."
        )


def disagreements(simulated: Resimulation) -> list[str]:
    """Return what a simulated client that sends something else says against the samples."""
    if simulated.agree:
        return []
    if simulated.problem:
        return [f"The client could not be simulated: {simulated.problem}."]
    worst = simulated.worst
    where = "" if worst is None else f"; the worst is {worst.name}, by {worst.misfit:.3g} roundings"
    return [f"The simulated client does not send this share{where}."]
