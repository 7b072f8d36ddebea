"""The input of one sample by one division: ``∂L/∂W = δ xᵀ`` and ``∂L/∂b = δ`` of the first layer.

Nothing is assumed of the loss, of the label or of the weights. A factor on the whole share cancels.
One that differs from tensor to tensor (layer-wise clipping, another rate for biases) does not: then
the input comes out up to a factor, which the forward pass through the model can tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from softleak.core.errors import SoftleakError
from softleak.core.factors import Factors
from softleak.core.forward import forward_one, random_input
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.numerics.recorder import recorded_inputs
from softleak.resimulation import exact_copy

ROUNDINGS = 64.0  # that a gradient of one sample may be off a product
AGREES = 1e-3  # the sine of the angle between two features that are one
TRIED, WIDEST = 61, 1e6  # factors that are tried, and the largest
LEAST_ENTRIES = 3  # of a feature whose direction can tell a factor


@dataclass(frozen=True, eq=False)
class Quotient:
    """The input of one sample, as one division gives it.

    Attributes:
        input: the input, in the shape that the model takes.
        error: the standard error of each entry, by rounding.
        layer: the layer that gave it.
        verified: whether the model makes of it the feature that the head's gradient shows.
        factor: what the quotient was divided by, where tensors have factors of their own.
    """

    input: Tensor
    error: Tensor
    layer: str
    verified: bool
    factor: float = 1.0


def input_layer(subject: Subject) -> str | None:
    """Return the fully connected layer with a bias that the input enters as it is, if any."""
    shape = subject.tensor_shape
    if shape is None:
        return None
    named = {
        name: module for name, module in subject.model.named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None
        and module.in_features == math.prod(shape)
    }  # fmt: skip
    x = random_input(shape, 0, torch.Generator().manual_seed(0))
    if not named or not isinstance(x, Tensor):
        return None
    try:
        with torch.no_grad(), recorded_inputs(subject.model, *named) as entered:
            forward_one(subject.model, x)
    except SoftleakError:
        return None
    for name, calls in entered.items():
        whole = len(calls) == 1 and calls[0].shape == (1, x.numel())
        if whole and torch.equal(calls[0].flatten().to(x), x.flatten()):
            return name
    return None


def divided(subject: Subject, share: GradientShare, factors: Factors | None) -> Quotient | None:
    """Return the input of one sample by division; None if the model or the share is not of it.

    Args:
        subject: the model.
        share: what was sent.
        factors: the factors of the head's gradient, if that is of rank one.
    """
    layer = subject.once(input_layer)
    if layer is None or not {f"{layer}.weight", f"{layer}.bias"} <= share.keys():
        return None
    G, g = share[f"{layer}.weight"].double(), share[f"{layer}.bias"].double()
    size = float(g.norm())
    if not size > 0:
        return None
    x = (g @ G) / size**2
    dtype = subject.parameters[f"{layer}.weight"].dtype
    relative = share.resolution(f"{layer}.weight", dtype)
    noise, own = share.noise(f"{layer}.weight"), share.noise(f"{layer}.bias")
    allowed = ROUNDINGS * relative * float(G.norm())
    allowed += 4 * math.hypot(noise * G.numel() ** 0.5, own * len(g) ** 0.5 * float(x.norm()))
    if not float((G - torch.outer(g, x)).norm()) <= allowed:
        return None
    error = (relative * x.abs()).hypot(x.new_tensor((noise + own * float(x.norm())) / size))
    x, error = (one.view(subject.expected_tensor_shape) for one in (x, error))
    factor = _factor(subject, x, factors)
    if factor is None:
        return Quotient(x, error, layer, verified=False)
    return Quotient(x / factor, error / factor, layer, verified=True, factor=factor)


def _factor(subject: Subject, x: Tensor, factors: Factors | None) -> float | None:
    """Return the factor at which the model makes the head's feature of ``x``; None if at none."""
    if factors is None or factors.v.shape[-1] < LEAST_ENTRIES:
        return None
    v = factors.v[0]

    def off(log: float) -> float:
        feature = _feature(subject, x / math.exp(log))
        if feature is None or not float(feature.norm()) > 0:
            return 1.0
        along = float(feature @ v / feature.norm())
        return math.sqrt(max(1 - along**2, 0.0))

    if off(0.0) <= AGREES:
        return 1.0
    tried = torch.linspace(-1, 1, TRIED).mul(math.log(WIDEST)).tolist()
    values = [off(one) for one in tried]
    best = min(range(1, TRIED - 1), key=values.__getitem__)
    found = minimize_scalar(off, bounds=(tried[best - 1], tried[best + 1]), method="bounded",
                            options={"xatol": 1e-10})  # fmt: skip
    return math.exp(float(found.x)) if found.fun <= AGREES else None


def _feature(subject: Subject, x: Tensor) -> Tensor | None:
    """Return the feature (I,) that the model makes of an input, in float64."""
    model = subject.once(exact_copy)
    with torch.no_grad(), recorded_inputs(model, subject.head.name) as entered:
        forward_one(model, x)
    last = entered[subject.head.name][-1]
    return last.flatten() if last.numel() == subject.head.W.shape[1] else None
