"""This module holds the classifier head ``z = W x + b`` of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from softleak.errors import HeadNotFound, ModelError


@dataclass(frozen=True)
class PowerIteration:
    """These settings bound the largest singular value of the head."""

    steps: int = 8  # steps of power iteration
    slack: float = 1.2  # a factor that makes up for what the steps lack


POWER = PowerIteration()


SHORTEST = 1e-300  # keeps a quotient finite
CACHED_BLOCK = 1 << 18  # entries converted to float64 at a time, so that they stay in the cache


def _blocks_of(matrix: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of a matrix (C, I) in blocks that stay in the cache as float64."""
    return torch.split(matrix, max(CACHED_BLOCK // matrix.shape[1], 1))


def column_sums(matrix: Tensor) -> Tensor:
    """Return the sums (I,) over the columns of a matrix (C, I), in float64."""
    return torch.stack([block.double().sum(0) for block in _blocks_of(matrix)]).sum(0)


@dataclass(frozen=True, eq=False)
class Head:
    """This is a model's last linear layer: ``W`` (C, I), and ``b`` (C,), zero if there is none.

    ``normalised`` says that the model takes a log-softmax of its output. The cross-entropy takes
    another, and then even rounding errors of ``p − y`` add up to zero.
    """

    name: str
    W: Tensor
    b: Tensor
    has_bias: bool
    normalised: bool = False

    @cached_property
    def largest_weight(self) -> float:
        """Return the largest entry of ``W``, by size."""
        return float(self.W.abs().max())

    @cached_property
    def largest_row(self) -> float:
        """Return the length of the longest row of ``W``."""
        return float(self.W.norm(dim=1).max())

    @cached_property
    def column_sums(self) -> Tensor:
        """Return the sums (I,) over the columns of ``W``, in float64."""
        return column_sums(self.W)

    @cached_property
    def norm(self) -> float:
        """Return the largest singular value of ``W``, from a few power steps, rounded up."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, self.W.shape[1], generator=generator, dtype=torch.double)
        x = x.to(self.W.device)
        for _ in range(POWER.steps):
            x = self.back(self.logits(x / x.norm().clamp_min(SHORTEST)))
        return POWER.slack * float(x.norm().sqrt())

    @property
    def weight_name(self) -> str:
        """Return the parameter whose gradient is ``G``."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str:
        """Return the parameter whose gradient is ``δ`` itself."""
        return f"{self.name}.bias" if self.name else "bias"

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the model computes in."""
        return self.W.dtype

    @property
    def classes(self) -> int:
        """Return the number of classes C."""
        return self.W.shape[0]

    @cached_property
    def _blocks(self) -> tuple[Tensor, ...]:
        """Return the rows of ``W`` in blocks that stay in the cache as float64."""
        return _blocks_of(self.W)

    def logits(self, x: Tensor) -> Tensor:
        """Return ``W x`` (N, C) in float64, of features (N, I), without the bias."""
        rows = self._blocks
        if len(x) == 1:  # a matrix-vector product runs at the speed of memory
            return torch.cat([torch.mv(block.double(), x[0]) for block in rows])[None]
        return torch.cat([x @ block.double().T for block in rows], 1)

    def back(self, delta: Tensor) -> Tensor:
        """Return ``Wᵀ δ`` (N, I) in float64, of ``δ`` (N, C)."""
        blocks = self._blocks
        pieces = torch.split(delta, len(blocks[0]), 1) if len(blocks) > 1 else (delta,)
        parts = zip(blocks, pieces, strict=True)
        if len(delta) == 1:
            products = [torch.mv(block.double().T, part[0])[None] for block, part in parts]
        else:
            products = [part @ block.double() for block, part in parts]
        return torch.stack(products).sum(0) if len(products) > 1 else products[0]

    @classmethod
    def of(cls, model: nn.Module, name: str | None = None) -> Head:
        """Return the linear layer of this name, by default the last one defined, taken at its word.

        Nothing is run: whoever passes such a head on vouches that the model's logits are its
        output. ``find_head`` makes sure of it.
        """
        linears = linear_layers(model)
        if name is not None and name not in linears:
            raise HeadNotFound(f"no nn.Linear named {name!r}; the model has {', '.join(linears)}")
        found = list(linears)[-1] if name is None else name
        return cls._from_linear(found, linears[found])

    @classmethod
    def _from_linear(cls, name: str, linear: nn.Linear) -> Head:
        W = linear.weight.detach()
        if len(W) < 2:
            raise ModelError(
                f"expected logits of at least two classes, but the head {name!r} has one output, "
                "as a sigmoid needs it; softleak audits softmax classifiers"
            )
        if not W.is_meta and not W.isfinite().all():
            raise ModelError(f"the head {name!r} has weights that are NaN or infinite")
        bias = torch.zeros(len(W), device=W.device) if linear.bias is None else linear.bias
        b = bias.detach().double()
        return cls(name, W, b, linear.bias is not None)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return every ``nn.Linear`` of a model by name; raises ``HeadNotFound`` if there is none."""
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    if not linears:
        raise HeadNotFound(
            f"expected a classifier whose logits come from an nn.Linear, but "
            f"{type(model).__name__} has no nn.Linear"
        )
    return linears
