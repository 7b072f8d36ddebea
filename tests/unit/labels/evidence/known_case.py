"""Clients whose scalar is known: a head, its factors, and gradients made from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.factors import Factors, factor
from softleak.labels.evidence.relation import Blurred, log_normal


@dataclass(frozen=True, eq=False)
class Known:
    """N clients: features (N, I), ``δ`` (N, C) and the true scalars (N,)."""

    head: sl.Head
    features: Tensor
    delta: Tensor
    factors: Factors
    tau: Tensor

    @classmethod
    def of(cls, features: Tensor, classes: int = 10, scale: float = 1.0) -> Known:
        """Features (N, I) in float64, with random labels; shares are sent in float32."""
        generator = torch.Generator().manual_seed(1)
        linear = nn.Linear(features.shape[1], classes)
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        head = sl.Head.of(linear)
        y = torch.rand(len(features), classes, generator=generator, dtype=torch.double).softmax(-1)
        delta = scale * (torch.softmax(features @ head.W.double().T + head.b, -1) - y)
        shares = [
            sl.GradientShare({"weight": torch.outer(d, x).float()})
            for d, x in zip(delta, features, strict=True)
        ]
        factors = factor(head, shares)
        return cls(head, features, delta, factors, (delta * factors.u).sum(-1))

    @property
    def d(self) -> Tensor:
        """(N, I) ``Wᵀδ``."""
        return self.delta @ self.head.W.double()

    def blurred(self, client: int, noise: float) -> Blurred:
        """What is seen of one client if only its gradients ``g`` are noisy."""
        u, zero = self.factors.u[client], torch.zeros_like(self.factors.u[client])
        back = self.d[client] / self.tau[client]
        x = self.factors.sigma[client] * self.factors.v[client]
        none = torch.zeros_like(x)
        return Blurred(u, zero, back, none, x, none, noise, log_normal)


def peak(log: Tensor, at: Tensor) -> float:
    return float(at[log.argmax()])
