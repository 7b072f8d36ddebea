"""The classifier head ``z = W x + b``: found in a model, kept in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.capture import forward_one
from softleak.errors import HeadNotFound


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last linear layer, in float64. ``W`` (C, I), ``b`` (C,), zero if there is none."""

    name: str
    W: Tensor
    b: Tensor
    has_bias: bool
    dtype: torch.dtype  # what the model computes in
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
    def classes(self) -> int:
        """C."""
        return self.W.shape[0]

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
        W = linear.weight.detach().double()
        b = linear.bias.detach().double() if linear.bias is not None else W.new_zeros(len(W))
        return cls(
            name, W, b, linear.bias is not None, linear.weight.dtype,
            float(W.abs().max()), float(W.norm(dim=1).max()),
        )  # fmt: skip


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
