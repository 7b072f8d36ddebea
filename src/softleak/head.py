"""The classifier head ``z = W x + b``, its gradient, and its rank-one factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.capture import forward_one
from softleak.errors import HeadNotFound, MissingGradient, ShareError
from softleak.share import GradientShare

POWER_STEPS = 2  # from the largest row; rank one up to rounding needs no more
RANK_TOLERANCE = 64.0  # a second singular value above this many roundings is another sample


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last linear layer, in float64. ``W`` (C, I), ``b`` (C,), zero if there is none."""

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
            name, W, b, linear.bias is not None,
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


@dataclass(frozen=True, eq=False)
class Factors:
    """``G = σ u vᵀ`` for N clients, and how exactly. ``u`` (N, C), ``v`` (N, I), the rest (N,).

    ``relative`` and ``absolute`` are the rounding of an entry of ``G``: a part of its size, and
    whatever its size; numbers below ``tiny`` are lost. ``residual`` is ``‖G − σ u vᵀ‖ / σ``.
    """

    u: Tensor
    sigma: Tensor
    v: Tensor
    residual: Tensor
    relative: float
    absolute: Tensor
    tiny: float

    def take(self, rows: Tensor) -> Factors:
        """The factors of some clients."""
        return Factors(
            self.u[rows], self.sigma[rows], self.v[rows], self.residual[rows],
            self.relative, self.absolute[rows], self.tiny,
        )  # fmt: skip

    @property
    def zero(self) -> Tensor:
        """(N,) whether the gradient is zero."""
        return self.sigma == 0

    @property
    def rank_one(self) -> Tensor:
        """(N,) whether rounding explains all that is not rank one."""
        entries = self.u.shape[-1] ** 0.5 + self.v.shape[-1] ** 0.5
        noise = 4 * entries * self.absolute / self.sigma.clamp_min(torch.finfo(torch.double).tiny)
        return self.residual <= RANK_TOLERANCE * self.relative + noise


def head_gradients(head: Head, shares: Sequence[GradientShare]) -> Tensor:
    """(N, C, I) the head's weight gradients in the dtype they came in, checked."""
    name = head.weight_name
    for share in shares:
        if name not in share:
            raise MissingGradient(
                f"the share lacks {name!r}, the gradient of the head; it holds "
                f"{', '.join(list(share)[:6]) or 'nothing'}… Name another head or send that layer"
            )
        if share[name].shape != head.W.shape:
            raise ShareError(
                f"the head's gradient {name!r} should be {tuple(head.W.shape)} as the model's "
                f"weight, got {tuple(share[name].shape)}; is this the right model?"
            )
        share.check_finite(name)
    return torch.stack([share[name].to(head.W.device) for share in shares])


def factor(G: Tensor, absolute: Tensor) -> Factors:
    """The leading singular pair of each ``G`` (N, C, I), by power steps from its largest row."""
    info = torch.finfo(G.dtype)
    G = G.double()
    tiny = torch.finfo(torch.double).tiny
    row = G.square().sum(-1).argmax(-1)
    v = G[torch.arange(len(G), device=G.device), row]
    v = v / v.norm(dim=-1, keepdim=True).clamp_min(tiny)
    for _ in range(POWER_STEPS):
        u = torch.einsum("nci,ni->nc", G, v)
        v = torch.einsum("nci,nc->ni", G, u)
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(tiny)
    u = torch.einsum("nci,ni->nc", G, v)
    sigma = u.norm(dim=-1)
    u = u / sigma.clamp_min(tiny)[:, None]
    # A feature is mostly positive after an activation: with v so, t > 0 in the usual case.
    sign = torch.where(v.sum(-1) < 0, -1.0, 1.0)[:, None]
    rest = torch.baddbmm(G, (u * sigma[:, None])[:, :, None], v[:, None, :], alpha=-1)
    residual = rest.flatten(1).norm(dim=-1) / sigma.clamp_min(tiny)
    floor = info.tiny * info.eps
    return Factors(u * sign, sigma, v * sign, residual, info.eps / 2, absolute + floor, info.tiny)


def numerical_rank(G: Tensor, relative: float) -> int:
    """How many singular values of ``G`` (C, I) stand above rounding: a bound on the samples."""
    values = torch.linalg.svdvals(G.double())
    return int((values > RANK_TOLERANCE * relative * values[0]).sum())
