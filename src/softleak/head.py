"""The classifier head ``z = W x + b``, found in a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.capture import forward_one
from softleak.errors import HeadNotFound
from softleak.inputs import accepted_shapes

BLOCK = 1 << 18  # entries converted to float64 at a time, so that they stay in the cache


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last linear layer: ``W`` (C, I) as it is, ``b`` (C,) in float64, zero if none."""

    name: str
    W: Tensor
    b: Tensor
    has_bias: bool
    largest_weight: float
    largest_row: float

    @property
    def weight_name(self) -> str:
        """The parameter whose gradient is ``G``."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str:
        """The parameter whose gradient is ``δ`` itself."""
        return f"{self.name}.bias" if self.name else "bias"

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.W.dtype

    @property
    def classes(self) -> int:
        """C."""
        return self.W.shape[0]

    def logits(self, x: Tensor) -> Tensor:
        """``W x`` (N, C) in float64, of features (N, I), without the bias."""
        rows = torch.split(self.W, max(BLOCK // self.W.shape[1], 1))
        if len(x) == 1:  # a matrix-vector product runs at the speed of memory
            return torch.cat([torch.mv(block.double(), x[0]) for block in rows])[None]
        return torch.cat([x @ block.double().T for block in rows], 1)

    def back(self, delta: Tensor) -> Tensor:
        """``Wᵀ δ`` (N, I) of ``δ`` (N, C), computed as exactly as the client does."""
        delta = delta.to(self.dtype)
        product = torch.mv(self.W.T, delta[0])[None] if len(delta) == 1 else delta @ self.W
        return product.double()

    @classmethod
    def of(cls, model: nn.Module, name: str | None = None, example: Tensor | None = None) -> Head:
        """The head of a model: named, or the ``nn.Linear`` whose output is the model's output."""
        linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        if name is not None:
            if name not in linears:
                raise HeadNotFound(
                    f"no nn.Linear named {name!r}; the model has {', '.join(linears) or 'none'}"
                )
        elif not linears:
            raise HeadNotFound(
                f"expected a classifier whose logits come from an nn.Linear, but "
                f"{type(model).__name__} has no nn.Linear"
            )
        elif example is not None:
            name = _producer_of_logits(model, linears, example)
        else:
            name = list(linears)[-1]
        return cls._from_linear(name, linears[name])

    @classmethod
    def _from_linear(cls, name: str, linear: nn.Linear) -> Head:
        W = linear.weight.detach()
        bias = torch.zeros(len(W), device=W.device) if linear.bias is None else linear.bias
        b = bias.detach().double()
        return cls(
            name, W, b, linear.bias is not None,
            float(W.abs().max()), float(W.norm(dim=1).max()),
        )  # fmt: skip


def find_head(
    model: nn.Module, name: str | None = None, shape: tuple[int, ...] | None = None
) -> Head:
    """The head, by name or by running the model if it has several linear layers."""
    linears = sum(isinstance(module, nn.Linear) for module in model.modules())
    if name is not None or linears < 2:
        return Head.of(model, name)
    shape = shape or next(accepted_shapes(model), None)
    return Head.of(model, None, torch.zeros(shape) if shape else None)


def _producer_of_logits(model: nn.Module, linears: dict[str, nn.Linear], example: Tensor) -> str:
    """Run the model once and see which linear layer's output leaves it unchanged."""
    outputs: dict[str, Tensor] = {}

    def remember(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, __: object, output: Tensor) -> None:
            outputs[name] = output.detach()

        return linears[name].register_forward_hook(hook)

    handles = [remember(name) for name in linears]
    try:
        with torch.no_grad():
            logits, _ = forward_one(model, example)
    finally:
        for handle in handles:
            handle.remove()
    for name, output in reversed(outputs.items()):
        if output.shape == logits.shape and torch.equal(output, logits):
            return name
    raise HeadNotFound(
        "the model's output is not the output of any of its nn.Linear layers "
        f"({', '.join(linears)}); softleak needs logits straight from a linear layer"
    )
