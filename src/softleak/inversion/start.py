"""This module says what a label recovery tells of the head's input: there the walk back starts."""

from __future__ import annotations

from torch import Tensor

from softleak.factors import factor
from softleak.head import Head
from softleak.inversion.state import LayerState, Measurement
from softleak.results import Recovery, Status
from softleak.share import GradientShare


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
