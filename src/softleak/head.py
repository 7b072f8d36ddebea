"""This module holds the classifier head ``z = W x + b`` of a model."""

from __future__ import annotations

from collections.abc import Iterator
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
KEPT_WEIGHTS = 1 << 22  # entries of a head that is kept in float64 as well, in 32 MiB at most


def float64_blocks(matrix: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix (C, I) in float64, in blocks that stay in the cache.

    All blocks share one buffer, so each is valid until the next is asked for. Fresh memory for
    every block would take several times as long as the product that it is needed for.
    """
    rows = max(CACHED_BLOCK // max(matrix.shape[1], 1), 1)
    if matrix.dtype is torch.double or len(matrix) <= rows:
        yield matrix.double()
        return
    buffer = torch.empty(rows, matrix.shape[1], dtype=torch.double, device=matrix.device)
    for block in torch.split(matrix, rows):
        yield buffer[: len(block)].copy_(block)


def times_vector(matrix: Tensor, x: Tensor) -> Tensor:
    """Return ``M x`` (C,) in float64, of a matrix (C, I): it runs at the speed of memory."""
    products = [torch.mv(block, x) for block in float64_blocks(matrix)]
    return torch.cat(products) if len(products) > 1 else products[0]


def vector_times(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``xᵀ M`` (I,) in float64, of a matrix (C, I)."""
    found, row = x.new_zeros(matrix.shape[1]), 0
    for block in float64_blocks(matrix):
        found.addmv_(block.T, x[row : row + len(block)])
        row += len(block)
    return found


def product_and_sums(matrix: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``M x`` (C,) and the sums (I,) over the columns of ``M`` (C, I), in one pass."""
    ones, sums = torch.ones(len(matrix)).to(x), x.new_zeros(matrix.shape[1])
    products = []
    for block in float64_blocks(matrix):
        products.append(torch.mv(block, x))
        sums.addmv_(block.T, ones[: len(block)])
    return torch.cat(products), sums


def column_sums(matrix: Tensor) -> Tensor:
    """Return the sums (I,) over the columns of a matrix (C, I), in float64."""
    ones = torch.ones(len(matrix), dtype=torch.double, device=matrix.device)
    return vector_times(ones, matrix)


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
    def _weights(self) -> Tensor:
        """Return ``W`` for products: in float64 unless that would take much memory."""
        return self.W.double() if self.W.numel() <= KEPT_WEIGHTS else self.W

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

    def logits(self, x: Tensor) -> Tensor:
        """Return ``W x`` (N, C) in float64, of features (N, I), without the bias."""
        if len(x) == 1:
            return times_vector(self._weights, x[0])[None]
        return torch.cat([x @ block.T for block in float64_blocks(self._weights)], 1)

    def back(self, delta: Tensor) -> Tensor:
        """Return ``Wᵀ δ`` (N, I) in float64, of ``δ`` (N, C)."""
        if len(delta) == 1:
            return vector_times(delta[0], self._weights)[None]
        found, row = delta.new_zeros(len(delta), self.W.shape[1]), 0
        for block in float64_blocks(self._weights):
            found.addmm_(delta[:, row : row + len(block)], block)
            row += len(block)
        return found

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
