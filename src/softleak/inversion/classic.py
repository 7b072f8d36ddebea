"""§4.2 as published, one index a layer, and the older bias attack: baselines to compare with.

Both say nothing of their error; ``softleak.invert`` does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softleak.errors import ModelError, ShareError
from softleak.inversion.chain import Chain
from softleak.inversion.linear import Linear
from softleak.inversion.pointwise import Activation
from softleak.inversion.simple import Reshape
from softleak.inversion.step import REMEDY
from softleak.results import Recovery
from softleak.share import GradientShare


def one_index(chain: Chain, share: GradientShare, recovery: Recovery) -> Tensor:
    """Eq. 6 and 7: ``x = G_r / δ_r`` for the row of the largest |δ|, from layer to layer.

    In the precision of the model, for fully connected networks.
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
            case Activation():
                delta = delta * step.phi.slope(x)
            case Linear():
                row = int(delta.abs().argmax())
                x = share[f"{step.name}.weight"][row] / delta[row]
                delta = delta @ step.weight
            case Reshape():
                x, delta = x.reshape(step.shape), delta.reshape(step.shape)
            case _:
                raise ModelError(f"Eq. 6 has no {step.name}, only fully connected layers; {REMEDY}")
    return x


def bias_attack(model: nn.Module, share: GradientShare) -> Tensor:
    """The input of the first fully connected layer with a bias: ``∂L/∂W_r / ∂L/∂b_r``."""
    for name, layer in model.named_modules():
        told = {f"{name}.weight", f"{name}.bias"} <= set(share.gradients)
        if isinstance(layer, nn.Linear) and told:
            bias = share[f"{name}.bias"]
            row = int(bias.abs().argmax())
            return share[f"{name}.weight"][row] / bias[row]
    raise ShareError("no fully connected layer of the share has a bias gradient")
