"""The public ``invert``: the way that a model allows, from a share to its input.

A sequential network is walked back from the recovered feature to the input, layer by layer (§4.2).
What was computed backwards has to give, forwards, the feature that the head's gradient shows; and
where the share carries noise, a gradient that differs from the share by no more than that. How far
it may be off is not guessed: the model is run on the input moved by its own predicted error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import ModelError, ShareError, SoftleakError
from softleak.core.factors import Factors, factor
from softleak.core.forward import forward_one, recorded_inputs
from softleak.core.head import Head
from softleak.core.input_spec import InputSpec, Layout
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import Chain
from softleak.inversion.patches import NO_POSITIONS, invert_patches, patch_plan
from softleak.inversion.results import (
    Certainty,
    Inversion,
    LayerReport,
    NoWay,
    Text,
)
from softleak.inversion.steps import LayerState
from softleak.inversion.texts.read import read_batch, read_text
from softleak.inversion.texts.span import FROM_SPAN
from softleak.labels.fit import taken_for_noise

BOUND_IN_ERRORS = 16.0  # standard errors in the bound of a unique recovery, the worst of rounding


def invert(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovery | Sequence[Recovery] | None = None,
    *,
    chain: Chain | None = None,
    input_shape: Layout | None = None,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """Recover the input behind a share exactly, by the way that the model allows.

    The words of a text and the patches of a vision transformer are computed from the gradients of
    their embeddings; a sequential network is walked back layer by layer.

    Args:
        model: The model, in eval mode.
        share: The gradients that the client sent.
        recovery: What ``recover_label`` found in the share. A walk starts from it; embeddings
            tell their input without it. Of a batch of texts, what ``recover_batch`` found of each
            sample.
        chain: The network prepared by ``Chain.of``, once for many shares.
        input_shape: The input's shape or specification, if the share does not say it.
        pixel: The standard deviation that inputs were divided by, so that predictions are in
            pixels of range one.

    Returns:
        The input, its predicted error and a report. Of a text, the input holds the token ids and
        ``text`` says of each how certain it is. The texts of a batch whose embeddings are frozen
        are in ``texts``.

    Raises:
        ShareError: If the share lacks a gradient, or the recovery a feature.
        ModelError: If the model is none of these.
    """
    layout = input_shape or share.input_shape
    if chain is None and layout is not None:
        return invert_subject(Subject.of(model, layout), share, recovery, pixel=pixel)
    shape = layout if isinstance(layout, tuple) else None
    return walk_back(model, share, _needed(recovery), chain=chain, input_shape=shape, pixel=pixel)


def invert_subject(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery | Sequence[Recovery] | None,
    *,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """Recover the input behind a share of a subject, as ``invert`` does for a model.

    What has to be found out of the model is found once for all shares of a subject.
    """
    samples = (recovery,) if isinstance(recovery, Recovery) else tuple(recovery or ())
    noise = max((taken_for_noise(subject, share, one) for one in samples), default=0.0)
    share = share.expecting(noise) if noise else share
    if isinstance(subject.input_shape, InputSpec):
        return _texts(subject, share, samples)
    plan = subject.once(patch_plan)
    if not isinstance(plan, NoWay) and {plan.weight, plan.positions} <= share.keys():
        return invert_patches(plan, share, pixel)
    shape = subject.input_shape if isinstance(subject.input_shape, tuple) else None
    try:
        return walk_back(subject.model, share, _needed(samples), input_shape=shape, pixel=pixel)
    except ModelError as error:
        if plan == NO_POSITIONS:
            raise
        why = plan.reason if isinstance(plan, NoWay) else "the share lacks their gradients"
        raise ModelError(f"{error}; nor do its embeddings tell the image: {why}") from error


def _texts(subject: Subject, share: GradientShare, samples: Sequence[Recovery]) -> Inversion:
    """Return the text behind a share; where it is none by itself, the texts of a batch."""
    found = read_text(subject, share, samples[0] if len(samples) == 1 else None)
    if isinstance(found, NoWay):
        raise ModelError(f"the text cannot be read: {found.reason}")
    made = as_inversion(found)
    if found.method != FROM_SPAN or found.explained:
        return made
    labels = [one.label for one in samples if one.label is not None]
    several = read_batch(subject, share, torch.stack(labels) if len(labels) > 1 else None)
    if isinstance(several, NoWay) or (len(several) < 2 and len(samples) < 2):
        return made
    count = "1 text was" if len(several) == 1 else f"{len(several)} texts were"
    message = f"{count} told apart: {several[0].message}"
    return replace(made, texts=several, message=message)


def as_inversion(text: Text) -> Inversion:
    """Return a text in the form of every inversion: token ids (L,), −1 where none is known."""
    ids = [-1 if token is None else token for token in text.tokens]
    sure = [place.certainty in (Certainty.CERTAIN, Certainty.EMPTY) for place in text.places]
    error = torch.tensor([0.0 if one else float("inf") for one in sure], dtype=torch.double)
    known = text.count(Certainty.CERTAIN, Certainty.LIKELY, Certainty.EMPTY)
    report = LayerReport(text.method, known, len(text.places), 1.0, 1.0, text.certain)
    tokens, pixel = torch.tensor(ids, dtype=torch.long), torch.tensor(1.0)
    return Inversion(tokens, error, (report,), pixel, text.message, text)


def _needed(recovery: Recovery | Sequence[Recovery] | None) -> Recovery:
    """Return the one recovery that a walk starts from."""
    if isinstance(recovery, Recovery):
        return recovery
    if recovery is None or len(recovery) != 1:
        raise ModelError(
            "this model is walked back from its recovered feature; pass what recover_label found "
            f"of one sample, got {len(recovery or ())} recoveries"
        )
    return recovery[0]


def start_state(
    head: Head, share: GradientShare, recovery: Recovery, x: Tensor, t: float
) -> LayerState:
    """Return the state at the head's input: the feature x (I,) and ``∂L/∂x = Wᵀ t u``.

    Both are off by the relative error of the scalar t (docs/method.md, "One scalar in a closed
    interval"), and by rounding and noise of their own.

    The share is without an unknown scale; the recovered feature is on the device of the head.
    """
    factors = factor(head, [share])
    eps = factors.relative
    d = head.back(t * factors.u)[0]
    ends = (end for s in recovery.solutions for end in (s.low, s.high))
    spread = max((abs(end / t - 1) for end in ends), default=0.0)  # noise leaves no solutions
    off = min(max(recovery.feature_error, spread), 1.0)
    if recovery.status is Status.UNIQUE:  # otherwise all scalars within the bound are as likely
        off /= BOUND_IN_ERRORS
    noise = share.noise(head.weight_name)
    moved = abs(t) * noise / factors.sigma[0] * head.W.double().norm(dim=0)
    delta_error = moved.hypot(4 * eps * (d.abs() + d.abs().mean()))
    error = (off + 2 * eps) * x.abs() + 1e-12 * x.abs().amax() + noise / abs(t)
    return LayerState.uncoupled(x, error, d, delta_error, off)


def walk_back(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovery,
    *,
    chain: Chain | None = None,
    input_shape: tuple[int, ...] | None = None,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """Return the input of a sequential network, exactly, from its share and the recovered label.

    The arguments are those of ``softleak.invert``.

    Raises:
        ShareError: If the recovery has no feature, or the share lacks a gradient or its shape.
        ModelError: If the network is not a sequence of layers that can be walked back.
    """
    feature, t = recovery.feature, recovery.scalar
    if feature is None or t is None:
        raise ShareError(
            f"the recovery has no feature to start from ({recovery.status.name}): "
            f"{recovery.message}"
        )
    shape = input_shape or share.input_shape
    if chain is None:
        if not isinstance(shape, tuple):
            raise ShareError("the share does not say its input's shape; pass input_shape=(C, H, W)")
        chain = Chain.of(model, Subject.of(model, shape).head, shape)
    device = chain.head.W.device
    if recovery.noise and recovery.noise > share.noise(chain.head.weight_name):
        share = share.expecting(recovery.noise)
    if recovery.scale != 1.0:
        share = share.scaled(1 / recovery.scale)
    start = start_state(chain.head, share, recovery, feature.to(device), t)
    worth = torch.as_tensor(pixel, dtype=torch.double, device=device)
    found = _best_walk(chain, start, share, worth)
    if not found.determined or borne_out(model, chain.head, share, recovery, found):
        return found
    return replace(found, borne_out=False)


AGREES = 1e-3  # relative: two features that are this close are one, whatever is predicted
ERRORS = 8.0  # predicted errors that a feature may be off
LOOSEST = 0.3  # relative: a feature that may be off by more says nothing
LEAST_ENTRIES = 3  # of a feature whose direction can tell anything
DRAWS, SEED = 4, 0  # inputs moved by their error
CHANCE = 4.0  # standard deviations by which a sum of squares of noise may be off
SPREAD = 2.0  # predicted errors that an input behind noise may be off


@dataclass(frozen=True, eq=False)
class Shown:
    """The feature that the head's gradient shows of one sample, to compare those of inputs with."""

    model: nn.Module
    head: str  # the name of the head
    value: Tensor  # the feature (I,), in float64
    sized: bool  # whether its size is known as well as its direction
    error: float  # its relative error; infinite where too little is shown to tell anything

    @classmethod
    def of(cls, model: nn.Module, head: Head, recovery: Recovery, factors: Factors) -> Shown:
        sure = recovery.status in (Status.UNIQUE, Status.PROBABLE)
        if sure and recovery.feature is not None and recovery.feature_error <= LOOSEST / 2:
            value = recovery.feature.double()
            return cls(model, head.name, value, True, recovery.feature_error)
        error = float(factors.residual[0]) + factors.feature_error(0)
        nothing = bool(factors.zero) or factors.v.shape[1] < LEAST_ENTRIES
        error = math.inf if nothing or not error <= LOOSEST / 2 else error
        return cls(model, head.name, factors.v[0], False, error)

    def made(self, x: Tensor) -> Tensor | None:
        """Return the feature (I,) that the model makes of an input, in float64."""
        x = x.to(next(self.model.parameters()))
        try:
            with torch.no_grad(), recorded_inputs(self.model, self.head) as entered:
                forward_one(self.model, x)
        except SoftleakError:
            return None
        last = entered[self.head][-1] if entered[self.head] else x
        return last.flatten().double() if bool(last.isfinite().all()) else None

    def off(self, x: Tensor) -> float:
        """Return how far the feature of an input is off, relative to its size, and one at most.

        Where the size is not known, directions are compared.
        """
        feature, value = self.made(x), self.value
        if feature is None or feature.shape != value.shape or not float(feature.norm()) > 0:
            return 1.0
        own = float(value.norm())
        if self.sized:
            return min(float((feature - value).norm()) / own, 1.0)
        along = float(feature @ value) / float(feature.norm()) / own
        return math.sqrt(max(1 - along**2, 0.0))

    def tolerance(self, x: Tensor, error: Tensor) -> float:
        """Return how far the feature of ``x`` may be off, by its error and that of the one shown.

        It is infinite where a wrong input could not be told by it.
        """
        here, moved = self.made(x), [self.made(one) for one in _moved(x, error)]
        known = [one for one in moved if one is not None]
        if here is None or len(known) < DRAWS:
            return math.inf
        apart = torch.stack(known) - here
        spread = float(apart.square().sum(1).mean().sqrt() / here.norm().clamp_min(1e-300))
        allowed = AGREES + ERRORS * (spread + self.error)
        return allowed if allowed <= LOOSEST else math.inf


def _moved(x: Tensor, error: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(DRAWS, *x.shape, generator=generator, dtype=torch.double).to(x.device)
    return list(x + error * drawn)


def noise_explains(
    model: nn.Module, share: GradientShare, x: Tensor, error: Tensor, label: Tensor, noise: float
) -> bool:
    """Return whether noise, and the input's error, explain what the client's run leaves of a share.

    A sum of squares of noise is known to a few parts in the root of their number.
    """
    y = label.detach().clamp_min(0)

    def sent(one: Tensor) -> dict[str, Tensor]:
        made = capture(model, one.to(next(model.parameters())), y / y.sum())
        return {name: g.double() for name, g in made.items() if name in share}

    here = sent(x)
    count = sum(g.numel() for g in here.values())
    left = sum(float((share[n].double() - g).square().sum()) for n, g in here.items())
    spread = 0.0
    for one in _moved(x, error):
        there = sent(one)
        spread += sum(float((there[n] - g).square().sum()) for n, g in here.items()) / DRAWS
    drawn = noise**2 * count * (1.0 + CHANCE * math.sqrt(2 / count))
    return left <= drawn + SPREAD**2 * spread


def borne_out(
    model: nn.Module, head: Head, share: GradientShare, recovery: Recovery, found: Inversion
) -> bool:
    """Return whether the model makes of an input what the share shows of it."""
    shown = Shown.of(model, head, recovery, factor(head, [share]))
    if shown.error < math.inf:
        off = shown.off(found.input)
        if off > AGREES and off > shown.tolerance(found.input, found.error):
            return False
    noise, label = recovery.noise, recovery.label
    if not noise or label is None:
        return True
    noise = noise / abs(recovery.scale)  # of the share without its scale
    return noise_explains(model, share, found.input, found.error, label, noise)


def _best_walk(chain: Chain, start: LayerState, share: GradientShare, worth: Tensor) -> Inversion:
    """Return the quick pass where that is sufficient, else the pass that predicts more."""
    walks: list[Inversion] = []
    for steps in chain.passes:
        state, reports = start, []
        for step in steps:
            state, report = step.back(state, share)
            reports += [report] if report else []
        walks.insert(0, Inversion(state.value, state.error, tuple(reports), worth))
        if walks[0].sufficient:
            return walks[0]

    def promise(walk: Inversion) -> tuple[bool, float]:
        predicted = walk.psnr_predicted
        return walk.determined, -math.inf if math.isnan(predicted) else predicted

    return max(walks, key=promise)  # the thorough pass wins a tie
