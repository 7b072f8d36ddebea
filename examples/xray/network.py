"""A small residual network with a logit for each of fourteen findings, and images drawn by code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FINDINGS = (
    "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia",
    "pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural thickening",
    "hernia",
)  # fmt: skip
SIZE = 48  # pixels on a side
WIDTH = 16  # channels
STEPS, BATCH = 60, 16  # of the training that the weights come from
ROUND = 7  # the seed of the images it saw


class Block(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of its input."""
        return F.relu(x + self.second(F.relu(self.first(x))))


class XRayNet(nn.Module):
    """Three residual blocks, an average over each map, and fourteen logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(3)))
        self.head = nn.Linear(16 * WIDTH, len(FINDINGS))

    def forward(self, x: Tensor) -> Tensor:
        """Return a logit for each finding of images (B, 1, H, W)."""
        maps = self.blocks(F.relu(self.stem(x)))
        logits: Tensor = self.head(F.adaptive_avg_pool2d(maps, 4).flatten(1))
        return logits


def drawn(labels: Tensor, seed: int) -> Tensor:
    """Return images (B, 1, H, W) of two lungs, with a shadow for each finding of labels (B, 14)."""
    generator = torch.Generator().manual_seed(seed)
    side = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(side, side, indexing="ij")
    lungs = sum(
        (((x - c) / 0.35).square() + (y / 0.75).square() < 1).float() for c in (-0.45, 0.45)
    )
    images = []
    for label in labels:
        image = 0.8 - 0.5 * lungs
        for finding in (label > 0.5).nonzero()[:, 0].tolist():
            angle = torch.tensor(2 * torch.pi * finding / len(FINDINGS))
            jitter = 0.1 * torch.randn(2, generator=generator)
            where = 0.5 * torch.stack([angle.cos(), angle.sin()]) + jitter
            wide = 0.1 + 0.015 * finding
            away = (x - where[0]).square() + (y - where[1]).square()
            image = image + 0.4 * torch.exp(-away / wide**2)
        images.append(image + 0.02 * torch.randn(SIZE, SIZE, generator=generator))
    return torch.stack(images)[:, None] - 0.5


def some_labels(count: int, seed: int) -> Tensor:
    """Return the findings (count, 14) of as many patients."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, len(FINDINGS), generator=generator) < 0.2).float()


def make() -> nn.Module:
    """Return the network as every client is sent it: trained for a while, the same every time."""
    torch.manual_seed(0)
    model = XRayNet()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        labels = some_labels(BATCH, 1000 * ROUND + step)
        loss = F.binary_cross_entropy_with_logits(model(drawn(labels, step)), labels)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    return model.eval()
