"""The input of one sample by one division: ``∂L/∂W = δ xᵀ`` and ``∂L/∂b = δ`` of the first layer.

Nothing is assumed of the loss, of the label or of the weights, and several steps on one sample only
add up in ``δ``. A factor on the whole share cancels. One that differs from tensor to tensor
(layer-wise clipping, another rate for biases) does not: then the input comes out up to a factor,
which the forward pass through the model can tell.

Where entries were removed, those that are left are divided; on a grid they are off by a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from softleak.core.factors import factor, roundings
from softleak.core.fit import Explanation
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.invert import AGREES, CHANCE, LOOSEST, Shown
from softleak.inversion.results import psnr_of
from softleak.labels.fit import grid_step
from softleak.labels.local.whole import input_layer
from softleak.labels.otherwise import is_sign_pattern

ROUNDINGS = 64.0  # that a gradient of one sample may be off a product
TRIED, WIDEST = 61, 1e6  # factors that are tried, and the largest
APART, DRAWS = 0.1, 9  # how far samples are taken to be from their mean, relative; directions
ROUNDED = 6**-0.5  # of a step: the error that rounding up or down by chance leaves, on average
LEAST_ROWS = 2  # that have to agree on one input
FEWEST_CLASSES = 3  # of a head whose samples do not all have parallel gradients
STEPS = tuple(1e-6 * 2.0**k for k in range(20))  # relative: how wide an interval of factors may be


@dataclass(frozen=True, eq=False)
class Quotient:
    """The input of one sample, as one division gives it.

    Attributes:
        input: the input, in the shape that the model takes.
        error: the standard error of each entry, by rounding, noise and compression.
        layer: the layer that gave it.
        verified: whether the model makes of it the feature that the head's gradient shows.
        factor: what the quotient was divided by, where tensors have factors of their own.
    """

    input: Tensor
    error: Tensor
    layer: str
    verified: bool
    factor: float = 1.0

    def psnr(self, pixel: Tensor | float) -> float:
        """Return the PSNR in dB that the error predicts; one unit is worth ``pixel`` pixels."""
        return psnr_of(self.error, torch.as_tensor(pixel, dtype=torch.double))


def divided(subject: Subject, share: GradientShare, recovery: Recovery) -> Quotient | None:
    """Return the input of one sample by division; None if the model or the share is not of it.

    Args:
        subject: the model.
        share: what was sent.
        recovery: what was found of its label, which may be nothing.
    """
    layer = subject.once(input_layer)
    if layer is None or not {f"{layer}.weight", f"{layer}.bias"} <= share.keys():
        return None
    found = _divided(subject, share, layer, recovery)
    if found is None:
        return None
    x, error = (one.view(subject.expected_tensor_shape) for one in found)
    told = without_factor(subject, share, recovery, x, error)
    if told is not None:
        x, error, value = told
        return Quotient(x, error, layer, verified=True, factor=value)
    # All samples of two classes have parallel gradients, so that a mixture looks like one of them.
    if subject.head.classes < FEWEST_CLASSES and recovery.status is not Status.UNIQUE:
        return None
    return Quotient(x, error, layer, verified=False)


def divided_feature(
    subject: Subject, share: GradientShare, recovery: Recovery
) -> tuple[Tensor, float] | None:
    """Return the feature by division at the head with its relative error; None if rows disagree.

    Nothing tells whether the gradients of the head's weight and bias have one factor.
    """
    head = subject.head
    told = head.has_bias and {head.weight_name, head.bias_name} <= share.keys()
    if not told or head.classes < FEWEST_CLASSES:
        return None
    found = _divided(subject, share, head.name, recovery)
    if found is None or not float(found[0].norm()) > 0:
        return None
    x, error = found
    return x, float(error.norm() / x.norm())


def hides_several(subject: Subject, share: GradientShare, feature: Tensor) -> bool:
    """Return whether two samples of one class may pass for one, whose feature is their mean.

    Features ``x ± d`` leave ``J W d dᵀ`` with ``J = diag(p) − p pᵀ`` beside the product ``δ xᵀ``.
    Where that is no more than rounding and noise, the head does not show how many there are.
    """
    head, factors = subject.head, factor(subject.head, [share])
    x = feature.double().to(head.W.device)
    u = factors.u[0] * torch.sign(factors.v[0] @ x)
    p = torch.softmax(head.logits(x[None])[0] + head.b, -1)
    delta = p - F.one_hot(u.argmin(), len(p))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(DRAWS, len(x), generator=generator, dtype=torch.double).to(x.device)
    moved = APART * float(x.norm()) * head.logits(F.normalize(drawn, dim=1))
    beside = APART * (p * (moved - (moved @ p)[:, None])).norm(dim=1) / delta.norm()
    return not float(beside.median()) > float(torch.maximum(factors.slack, factors.residual))


def _divided(
    subject: Subject, share: GradientShare, layer: str, recovery: Recovery
) -> tuple[Tensor, Tensor] | None:
    """Return the quotient (I,) with standard errors, if all rows agree on one."""
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    G, g = share[weight].double(), share[bias].double()
    rows, columns = g != 0, (G[g != 0] != 0).any(0)
    if int(rows.sum()) < LEAST_ROWS or int(columns.sum()) < LEAST_ROWS or is_sign_pattern(G):
        return None
    G, g = G[rows], g[rows]
    steps = (grid_step(share[name].double()) or 0.0 for name in (weight, bias))
    step, own_step = (ROUNDED * one for one in steps)
    left = G != 0
    pruned = Explanation.PRUNED in recovery.fit.explanations
    whole = not pruned and (step > 0 or bool(left[:, columns].all()))
    used = torch.ones_like(G) if whole else left.double()
    size = (used.T @ g.square()).sqrt()  # (I,) of the part of the bias that tells an entry
    known = size > 0
    x = torch.where(known, (used * G).T @ g / size.square().clamp_min(1e-300), 0.0)
    relative = share.resolution(weight, subject.parameters[weight].dtype)
    noise, own = math.hypot(share.noise(weight), step), math.hypot(share.noise(bias), own_step)
    off = float((used * (G - torch.outer(g, x))).norm())
    count = float(used.sum())
    mixed = math.hypot(noise * count**0.5, own * float((used * x).norm()))
    mixed *= (1 + CHANCE * (2 / count) ** 0.5) ** 0.5
    spare = count - float(known.sum())  # of entries that have to agree with others on a number
    if not off <= roundings(ROUNDINGS, relative) * float(G.norm()) + mixed or spare < LEAST_ROWS:
        return None
    error = (relative * x.abs()).hypot(noise / size.clamp_min(1e-300))
    error = error.hypot(x * (own / size + len(g) * (own / size) ** 2))
    # What was removed is smaller than what was left of the largest row.
    removed = 0.0 if whole else float(G[left].abs().min() / g.abs().max())
    return x, torch.where(known, error, removed)


def without_factor(
    subject: Subject, share: GradientShare, recovery: Recovery, x: Tensor, error: Tensor
) -> tuple[Tensor, Tensor, float] | None:
    """Return an input, its error and the factor at which the model makes the feature shown of it.

    None if the model makes it of no multiple of ``x``, or nothing tells of which.
    """
    shown = Shown.of(subject.model, subject.head, recovery, factor(subject.head, [share]))
    if shown.error == math.inf:
        return None

    def off(log: float) -> float:
        return shown.off(x / math.exp(log))

    def width(log: float, allowed: float) -> float:
        sides = (step for step in STEPS if min(off(log - step), off(log + step)) > allowed)
        return next(sides, math.inf)

    def allowed(log: float) -> float:
        return shown.tolerance(x / math.exp(log), error / math.exp(log))

    plain = allowed(0.0)
    if off(0.0) <= plain < math.inf and width(0.0, plain) <= LOOSEST:
        return x, error, 1.0
    tried = torch.linspace(-1, 1, TRIED).mul(math.log(WIDEST)).tolist()
    values = [off(one) for one in tried]
    best = min(range(1, TRIED - 1), key=values.__getitem__)
    found = minimize_scalar(off, bounds=(tried[best - 1], tried[best + 1]), method="bounded",
                            options={"xatol": 1e-10})  # fmt: skip
    log, limit = float(found.x), allowed(float(found.x))
    if not float(found.fun) <= limit < math.inf:
        return None
    wide = width(log, max(limit, AGREES))
    if wide > LOOSEST:
        return None
    value = math.exp(log)
    return x / value, error.hypot(x * wide) / value, value
