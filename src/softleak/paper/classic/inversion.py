"""Two baselines: §4.2 as published, and the older bias attack.

The paper uses one row of each gradient. Neither baseline predicts its error; ``softleak.invert``
does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError, ShareError
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.inversion.chain import Chain
from softleak.inversion.state import REMEDY
from softleak.inversion.steps import ActivationStep, Linear, Reshape


def one_index(chain: Chain, share: GradientShare, recovery: Recovery) -> Tensor:
    """Return the input of a fully connected network by Eq. 6 and 7, in the model's precision.

    At each layer ``x = G_r / δ_r`` for the row r of the largest |δ|.

    Args:
        chain: The network prepared by ``Chain.of``.
        share: The gradients that the client sent.
        recovery: What ``recover_label`` found in the share.

    Returns:
        The input, in the shape of the chain's first layer.

    Raises:
        ShareError: If the recovery has no feature.
        ModelError: If a layer is not fully connected.
    """
    if recovery.feature is None or recovery.label is None:
        raise ShareError(f"the recovery has no feature to start from: {recovery.message}")
    head = chain.head
    if recovery.scale != 1.0:
        share = share.scaled(1 / recovery.scale)
    like = share[head.weight_name].dtype
    x = recovery.feature.to(like)
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    delta = head.back((p - recovery.label)[None])[0].to(like)
    for step in chain.steps:
        match step:
            case ActivationStep():
                delta = delta * step.phi.slope(x)
            case Linear():
                row = int(delta.abs().argmax())
                x = share[f"{step.name}.weight"][row] / delta[row]
                delta = delta @ step.weight
            case Reshape():
                x, delta = x.reshape(step.input_shape), delta.reshape(step.input_shape)
            case _:
                raise ModelError(
                    f"Eq. 6 and 7 invert fully connected layers only, got {step.name} "
                    f"({type(step).__name__}); use softleak.invert, or {REMEDY}"
                )
    return x


def bias_attack(model: nn.Module, share: GradientShare) -> Tensor:
    """Return the input of the first fully connected layer with a bias: ``∂L/∂W_r / ∂L/∂b_r``.

    Args:
        model: The model.
        share: The gradients that the client sent.

    Raises:
        ShareError: If no fully connected layer of the share has a gradient of its bias.
    """
    for name, layer in model.named_modules():
        complete = {f"{name}.weight", f"{name}.bias"} <= set(share.gradients)
        if isinstance(layer, nn.Linear) and complete:
            bias = share[f"{name}.bias"]
            row = int(bias.abs().argmax())
            return share[f"{name}.weight"][row] / bias[row]
    raise ShareError(
        "expected a fully connected layer whose weight and bias gradients are both in the share, "
        "got none; use softleak.invert, which needs no bias"
    )
