"""This module walks back from the recovered feature to the input, layer by layer (§4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.core.errors import ShareError
from softleak.core.factors import factor
from softleak.core.head import Head
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import Chain
from softleak.inversion.conv.layer import Conv
from softleak.inversion.state import TINY, LayerState, Measurement, Tangent
from softleak.inversion.step import LayerReport, Step
from softleak.inversion.texts.result import Text


def start_state(
    head: Head,
    share: GradientShare,
    recovery: Recovery,
    x: Tensor,
    t: float,
    *,
    bound_in_errors: float = 16.0,
) -> LayerState:
    """Return the state at the head's input: the feature x (I,) and ``∂L/∂x = Wᵀ t u``.

    Both are off by the relative error of the scalar t (docs/method.md, "One scalar in a closed
    interval"), and by rounding and noise of their own.

    Args:
        head: The model's last linear layer.
        share: The gradients that the client sent, without an unknown scale.
        recovery: What ``recover_label`` found in the share.
        x: The recovered feature (I,), on the device of the head.
        t: The recovered scalar.
        bound_in_errors: How many standard errors the bound of a unique recovery stands for. The
            bound takes all rounding at its worst.
    """
    factors = factor(head, [share])
    eps = factors.relative
    d = head.back(t * factors.u)[0]
    ends = (end for s in recovery.solutions for end in (s.low, s.high))
    spread = max((abs(end / t - 1) for end in ends), default=0.0)  # noise leaves no solutions
    off = min(max(recovery.feature_error, spread), 1.0)
    if recovery.status is Status.UNIQUE:  # otherwise all scalars within the bound are as likely
        off /= bound_in_errors
    noise = share.noise(head.weight_name)
    moved = abs(t) * noise / factors.sigma[0] * head.W.double().norm(dim=0)
    delta_error = moved.hypot(4 * eps * (d.abs() + d.abs().mean()))
    error = (off + 2 * eps) * x.abs() + 1e-12 * x.abs().amax() + noise / abs(t)
    return LayerState.uncoupled(Measurement(x, error), d, delta_error, off)


@dataclass(frozen=True)
class WalkSettings:
    """These are the settings of the walk back.

    Attributes:
        largest_residual: No rounding explains a layer's misfit of this size or more, in units of
            its expected error. The layer's rows then contradict each other.
        sufficient_psnr: The quick pass is the answer if it predicts this many dB or more. At 85 dB
            the error is a seventieth of a grey level.
        psnr_lost: The quick pass ends before its last layer if even this many dB less than that
            layer could reach at best would not be sufficient. The trained LeNet lost 27 to
            29 dB (8 images), untrained ones 11 to 24 (6 images), with LeakyReLU 42 or more. After
            a wrong guess the slower pass answers instead.
    """

    largest_residual: float = 100.0
    sufficient_psnr: float = 85.0
    psnr_lost: float = 28.0


WALK_SETTINGS = WalkSettings()


@dataclass(frozen=True, eq=False)
class Inversion:
    """This is the input behind a share, with its predicted error.

    Attributes:
        input: The input, in the shape that the model takes, without the batch.
        error: The predicted standard error of each entry, in the same shape.
        layers: How well each layer determined its input, from the last layer to the first.
        pixel: What one unit of the input is worth in pixels of range one.
        message: What the input was computed from, and what stays open, where there is more to say.
        text: The words and their certainty, if the input is a text; ``input`` then holds ids.
        texts: The texts of a batch, in no order, where they were told apart; their words are
            likely, never certain.
    """

    input: Tensor
    error: Tensor
    layers: tuple[LayerReport, ...]
    pixel: Tensor
    message: str = ""
    text: Text | None = None
    texts: tuple[Text, ...] = ()

    @property
    def determined(self) -> bool:
        """Tell whether the rows of every layer determined its input and agreed on it."""
        largest = WALK_SETTINGS.largest_residual
        agreed = all(layer.determined and layer.residual < largest for layer in self.layers)
        return agreed and bool(self.error.isfinite().all())

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Return the token at each place of a text; nothing if the input is not a text."""
        return () if self.text is None else self.text.tokens

    @property
    def psnr_predicted(self) -> float:
        """Return the PSNR in dB that ``error`` predicts, for pixels of range one."""
        return _psnr(self.error, self.pixel)

    @property
    def sufficient(self) -> bool:
        """Tell whether another pass could hardly improve the input."""
        return self.determined and self.psnr_predicted >= WALK_SETTINGS.sufficient_psnr


def invert(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovery,
    *,
    chain: Chain | None = None,
    input_shape: tuple[int, ...] | None = None,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """Recover the input of a sequential network exactly, from its share and the recovered label.

    Args:
        model: The network, in eval mode.
        share: The gradients that the client sent.
        recovery: What ``recover_label`` found in the share.
        chain: The network prepared by ``Chain.of``, once for many shares.
        input_shape: The input's shape without the batch, if the share does not say it.
        pixel: The standard deviation that inputs were divided by, so that predictions are in
            pixels of range one.

    Returns:
        The input, its predicted error and a report per layer.

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
    share = share.map(lambda _, g: g.to(device))
    if recovery.noise and recovery.noise > share.noise(chain.head.weight_name):
        share = share.expecting(recovery.noise)
    if recovery.scale != 1.0:
        share = share.scaled(1 / recovery.scale)
    start = start_state(chain.head, share, recovery, feature.to(device), t)
    return _best_walk(
        chain, start, share, torch.as_tensor(pixel, dtype=torch.double, device=device)
    )


def _best_walk(chain: Chain, start: LayerState, share: GradientShare, worth: Tensor) -> Inversion:
    """Return the quick pass where that is sufficient, else the pass that predicts more."""
    (quick, *more) = chain.passes
    first = _walked(quick, start, share, worth, hasty=bool(more))
    if first is not None and (first.sufficient or not more):
        return first
    second = _walked(more[0], start, share, worth)
    if first is None and not (second is not None and second.determined):
        first = _walked(quick, start, share, worth)
    walks = [walk for walk in (second, first) if walk is not None]
    return max(walks, key=_promise)  # the thorough pass wins a tie


def _promise(walk: Inversion) -> tuple[bool, float]:
    """Return a key by which the pass that predicts more is the larger."""
    predicted = walk.psnr_predicted
    return walk.determined, -math.inf if math.isnan(predicted) else predicted


def _walked(
    steps: tuple[Step, ...],
    start: LayerState,
    share: GradientShare,
    worth: Tensor,
    hasty: bool = False,
) -> Inversion | None:
    """Return the inversion of one walk back through all steps.

    Args:
        steps: The steps.
        start: What is known at the head's input.
        share: The gradients that the client sent.
        worth: What one unit of the input is worth in pixels of range one.
        hasty: Whether to return None instead of an inversion that will hardly be sufficient.
    """
    state, reports = start, []
    tangent: Tangent | None = None
    for step in steps:
        if hasty and step is steps[-1] and isinstance(step, Conv):
            best = _psnr(step.least_error(state, share), worth)
            if best - WALK_SETTINGS.psnr_lost < WALK_SETTINGS.sufficient_psnr:
                return None
        inverted = step.back(state, share, tangent)
        state, tangent = inverted.state, inverted.tangent
        reports += [inverted.report] if inverted.report else []
    return Inversion(state.measurement.value, state.measurement.error, tuple(reports), worth)


def _psnr(error: Tensor, worth: Tensor) -> float:
    """Return the PSNR in dB of standard errors, a unit being worth so much in pixels."""
    return -10 * math.log10(float((error * worth).square().mean()) + TINY)
