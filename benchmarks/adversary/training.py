"""Inputs for the zoo, and a short training that makes some of its models confident."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from softleak.paper import data

POOL = 64
BATCH = 32
RATE = 3e-3
SPREAD = 0.5  # how far the samples of a blob are from its centre


def blobs(shape: tuple[int, ...], classes: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (N, *shape) around one random centre for each class, and the classes (N,)."""
    centres = torch.randn(classes, *shape, generator=torch.Generator().manual_seed(classes))
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(classes, (count,), generator=generator)
    noise = torch.randn(count, *shape, generator=generator)
    return centres[index] + SPREAD * noise, index


def pool(shape: tuple[int, ...], classes: int, seed: int) -> Tensor:
    """Inputs (N, *shape) for clients: blobs, noise, and photographs where the shape allows it."""
    around, _ = blobs(shape, classes, POOL, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    noise = torch.randn(POOL, *shape, generator=generator)
    if len(shape) != 3 or shape[0] != 3:
        return torch.cat([around, noise])
    images = data.embedded().images[torch.randperm(200, generator=generator)[:POOL]]
    photographs = images.permute(0, 3, 1, 2).float() / 128 - 1
    sized = functional.interpolate(photographs, shape[1:], mode="bilinear")
    return torch.cat([around[: POOL // 2], noise[: POOL // 2], sized])


def train(model: nn.Module, shape: tuple[int, ...], steps: int) -> None:
    """Train on blobs with Adam, in train mode, so that BatchNorm learns statistics too."""
    model.train()
    with torch.no_grad():
        classes = model(torch.randn(BATCH, *shape)).shape[-1]
    x, index = blobs(shape, classes, 8 * BATCH, 0)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trainable, RATE)
    for step in range(steps):
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(x[rows]), index[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    optimiser.zero_grad()
