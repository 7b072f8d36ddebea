"""The walk back: from the recovered feature to the input, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.errors import ShareError
from softleak.factors import factor
from softleak.inversion.chain import Chain
from softleak.inversion.state import Known
from softleak.inversion.step import LayerReport, Step
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.verify import find_head

ASTRAY = 100.0  # a misfit, in units of its expected error, that no rounding explains
GOOD = 85.0  # dB, a seventieth of a grey level: a cheaper first pass that predicts it will do
BOUND = 16.0  # standard errors in the bound of a recovery, which takes all rounding at its worst


@dataclass(frozen=True, eq=False)
class Inversion:
    """The input behind a share: ``input`` and its predicted standard ``error``, entry by entry."""

    input: Tensor
    error: Tensor
    layers: tuple[LayerReport, ...]
    pixel: Tensor  # what one unit of the input is worth in pixels of range one

    @property
    def determined(self) -> bool:
        """Whether every layer's rows determined its input, and agreed on it."""
        agreed = all(layer.determined and layer.residual < ASTRAY for layer in self.layers)
        return agreed and bool(self.error.isfinite().all())

    @property
    def psnr_predicted(self) -> float:
        """The peak signal-to-noise ratio the errors amount to, for pixels of range one."""
        return -10 * math.log10(float((self.error * self.pixel).square().mean()) + 1e-300)


def invert(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovery,
    *,
    chain: Chain | None = None,
    input_shape: tuple[int, ...] | None = None,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """The input of a sequential network, exactly, from its share and the recovered label.

    ``chain`` is what ``Chain.of`` prepares once for many shares. ``pixel`` is the standard
    deviation inputs were divided by, if predictions are to be in pixels.
    """
    feature, t = recovery.feature, recovery.scalar
    if feature is None or t is None:
        raise ShareError(
            f"the recovery has no feature to start from ({recovery.status.name}): "
            f"{recovery.message}"
        )
    shape = input_shape or share.input_shape
    if chain is None:
        if shape is None:
            raise ShareError("the share does not say its input's shape; pass input_shape")
        chain = Chain.of(model, find_head(model, None, shape), shape)
    device = chain.head.W.device
    share = share.map(lambda _, g: g.to(device))
    if recovery.noise and recovery.noise > share.noise(chain.head.weight_name):
        share = share.expecting(recovery.noise)
    if recovery.scale != 1.0:
        share = share.scaled(1 / recovery.scale)
    start = _start(chain, share, recovery, feature.to(device), t)
    worth = torch.as_tensor(pixel, dtype=torch.double, device=device)
    walks: list[Inversion] = []
    for steps in chain.passes:
        walks.append(_walked(steps, start, share, worth))
        if walks[-1].determined and walks[-1].psnr_predicted >= GOOD:
            return walks[-1]
    return max(reversed(walks), key=_promise)  # of two alike the thorough one


def _promise(walk: Inversion) -> tuple[bool, float]:
    predicted = walk.psnr_predicted
    return walk.determined, -math.inf if math.isnan(predicted) else predicted


def _walked(
    steps: tuple[Step, ...], known: Known, share: GradientShare, worth: Tensor
) -> Inversion:
    """One walk back through all layers."""
    reports = []
    for step in steps:
        inverted = step.back(known, share)
        known = inverted.known
        reports += [inverted.report] if inverted.report else []
    return Inversion(known.value, known.error, tuple(reports), worth)


def _start(chain: Chain, share: GradientShare, recovery: Recovery, x: Tensor, t: float) -> Known:
    """What the recovery says of the head's input, by its feature and scalar."""
    head = chain.head
    factors = factor(head, [share])
    eps = factors.relative
    d = head.back(t * factors.u)[0]
    ends = (end for s in recovery.solutions for end in (s.low, s.high))
    apart = max((abs(end / t - 1) for end in ends), default=0.0)  # noise leaves no solutions
    off = min(max(recovery.feature_error, apart), 1.0)
    if recovery.status is Status.UNIQUE:  # else anything within the bound is as likely
        off /= BOUND
    noise = share.noise(head.weight_name)
    moved = abs(t) * noise / factors.sigma[0] * head.W.double().norm(dim=0)
    error = moved.hypot(4 * eps * (d.abs() + d.abs().mean()))
    bars = (off + 2 * eps) * x.abs() + 1e-12 * x.abs().amax() + noise / abs(t)
    return Known.straight(x, bars, d, error, off)
