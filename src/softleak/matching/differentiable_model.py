"""A model as a differentiable function from inputs and labels to the gradient that they send."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from softleak.errors import ModelError
from softleak.forward import logits_of
from softleak.head import Head


@dataclass(frozen=True, eq=False)
class DifferentiableModel:
    """A private copy of a model whose gradients can be differentiated by the input.

    Attributes:
        model: the copy. Batches of independent samples may run through it under ``vmap``.
        parameters: its parameters by name, detached.
        head: its last linear layer.
        plain: whether gradients are taken by autograd, one sample at a time. Some models cannot be
            vectorised and need it.
    """

    model: nn.Module
    parameters: dict[str, Tensor]
    head: Head
    plain: bool = False

    @classmethod
    def of(cls, model: nn.Module, head: Head, dtype: torch.dtype) -> DifferentiableModel:
        """Copy a model in a dtype; batch normalisation in train mode sees one sample only.

        Raises:
            ModelError: if a dropout layer is in train mode, as its mask cannot be known.
        """
        own = copy.deepcopy(model).to(dtype)
        for name, module in own.named_modules():
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training:
                raise ModelError(
                    f"{name} ({type(module).__name__}) is in train mode: nobody knows which "
                    "entries the client dropped, and with others no gradient matches; call "
                    "model.eval() to match as if none had been"
                )
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        return cls(own, {name: p.detach() for name, p in own.named_parameters()}, head)

    @property
    def like(self) -> Tensor:
        """A parameter, whose dtype and device all tensors of a problem have."""
        return next(iter(self.parameters.values()))

    def gradient(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return ``∂L/∂θ`` by name, for one input and its label (C,), or for a batch (B, C)."""
        return self.differentiated(lambda values: (self.loss(values, x, y), {}), self.parameters)[0]

    def gradient_and_feature(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return ``∂L/∂θ`` by name, and the feature that enters the head: (I,), or (B, I)."""
        seen: list[Tensor] = []

        def remember(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0])

        def loss(parameters: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            found = self.loss(parameters, x, y)
            return found, {"feature": seen[-1] if y.ndim > 1 else seen[-1][0]}

        handle = self.model.get_submodule(self.head.name).register_forward_pre_hook(remember)
        try:
            found, beside = self.differentiated(loss, self.parameters)
        finally:
            handle.remove()
        return found, beside["feature"]

    def differentiated(
        self,
        loss: Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]],
        values: dict[str, Tensor],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradient of a loss by named values, and what the loss returns beside it.

        The gradient can be differentiated again. Values that the loss does not use have zero.
        """
        if not self.plain:
            slopes: tuple[dict[str, Tensor], dict[str, Tensor]] = grad(loss, has_aux=True)(values)
            return slopes
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        total, beside = loss(leaves)
        found = torch.autograd.grad(
            total, list(leaves.values()), create_graph=True, allow_unused=True
        )
        pairs = zip(leaves.items(), found, strict=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs}, beside

    def loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of one input with its label (C,), or of a batch (B, C)."""
        batch = x if y.ndim > 1 else x[None]
        logits = logits_of(functional_call(self.model, parameters, (batch,)))
        if logits is None:
            raise ModelError(
                f"expected logits of shape ({len(batch)}, classes), the output is not a tensor"
            )
        return -(torch.log_softmax(logits, -1) * y).sum(-1).mean()
