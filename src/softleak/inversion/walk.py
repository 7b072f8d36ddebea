"""The walk back from the recovered feature to the input, layer by layer (§4.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.core.errors import ShareError
from softleak.core.factors import factor
from softleak.core.head import Head
from softleak.core.results import Recovery, ShortRepr, Status, message_lines
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import Chain
from softleak.inversion.conv.layer import Conv
from softleak.inversion.state import LayerReport, LayerState, Measurement, Step, Tangent
from softleak.inversion.texts.plan import Text
from softleak.numerics.least_squares import TINY

BOUND_IN_ERRORS = 16.0  # standard errors in the bound of a unique recovery, the worst of rounding
LARGEST_RESIDUAL = 100.0  # of a layer's misfit in its expected error: more, and rows contradict
SUFFICIENT_PSNR = 85.0  # in dB: an error of a seventieth of a grey level, where the quick pass ends
# The dB that the last layer costs the quick pass, which is given up where they are missing. The
# trained LeNet lost 27 to 29 dB (8 images), untrained ones 11 to 24 (6 images), with LeakyReLU 42
# or more. After a wrong guess the slower pass answers instead.
PSNR_LOST = 28.0


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
    return LayerState.uncoupled(Measurement(x, error), d, delta_error, off)


@dataclass(frozen=True, eq=False, repr=False)
class Inversion(ShortRepr):
    """The input behind a share, with its predicted error.

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
        agreed = all(one.determined and one.residual < LARGEST_RESIDUAL for one in self.layers)
        return agreed and bool(self.error.isfinite().all())

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Return the token at each place of a text; nothing if the input is not a text."""
        return () if self.text is None else self.text.tokens

    @property
    def psnr_predicted(self) -> float:
        """Return the PSNR in dB that ``error`` predicts, for pixels of range one."""
        return _psnr(self.error, self.pixel)

    def _lines(self) -> Iterator[str]:
        yield f"Inversion: an input {tuple(self.input.shape)}, {self._found()}"
        yield from message_lines(self.message)

    def _found(self) -> str:
        if self.text is not None:
            return f"{sum(token is not None for token in self.tokens)} tokens known"
        certain = "determined" if self.determined else "not determined"
        return f"{certain}, {self.psnr_predicted:.1f} dB predicted"

    @property
    def sufficient(self) -> bool:
        """Tell whether another pass could hardly improve the input."""
        return self.determined and self.psnr_predicted >= SUFFICIENT_PSNR


def invert(
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

    def promise(walk: Inversion) -> tuple[bool, float]:
        predicted = walk.psnr_predicted
        return walk.determined, -math.inf if math.isnan(predicted) else predicted

    return max(walks, key=promise)  # the thorough pass wins a tie


def _walked(
    steps: tuple[Step, ...], start: LayerState, share: GradientShare, worth: Tensor,
    hasty: bool = False,
) -> Inversion | None:  # fmt: skip
    """Return the inversion of one walk back through all steps.

    A ``hasty`` walk returns None instead of an inversion that will hardly be sufficient.
    """
    state, reports = start, []
    tangent: Tangent | None = None
    for step in steps:
        if hasty and step is steps[-1] and isinstance(step, Conv):
            best = _psnr(step.least_error(state, share), worth)
            if best - PSNR_LOST < SUFFICIENT_PSNR:
                return None
        inverted = step.back(state, share, tangent)
        state, tangent = inverted.state, inverted.tangent
        reports += [inverted.report] if inverted.report else []
    return Inversion(state.measurement.value, state.measurement.error, tuple(reports), worth)


def _psnr(error: Tensor, worth: Tensor) -> float:
    """Return the PSNR in dB of standard errors, a unit of which is worth ``worth`` pixels."""
    return -10 * math.log10(float((error * worth).square().mean()) + TINY)
