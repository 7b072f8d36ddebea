"""A small network and what its clients send."""

import torch
from torch import nn

import softleak as sl


def small(classes=4, size=8):
    """A net so small that its images are found in a moment."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Conv2d(6, 6, 3, padding=1), nn.Sigmoid(),
        nn.Flatten(), nn.Linear(6 * size * size, classes),
    )  # fmt: skip
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def victims(model, count, classes=4, size=8):
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.rand(1, size, size, generator=generator) for _ in range(count)]
    labels = torch.distributions.Dirichlet(torch.ones(classes)).sample((count,))
    shares = [sl.capture(model, x, y) for x, y in zip(inputs, labels, strict=True)]
    return inputs, labels, shares
