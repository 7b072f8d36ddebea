"""Networks for which another input sends the same gradient, and two of which every input is alone.

Inputs are entries of records, images and signals. ``drawn`` makes a network with an input of it,
and that input's twin.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """A network whose entries enter a fully connected one as ``entered`` changes them."""

    shape: tuple[int, ...] = (8,)
    width = 8

    def __init__(self) -> None:
        super().__init__()
        self.rest = nn.Sequential(
            nn.Linear(self.width, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5)
        )

    def entered(self, x: Tensor) -> Tensor:
        """Return what of the inputs (B, …) the first layer takes, (B, width)."""
        return x

    def twin(self, x: Tensor) -> Tensor | None:
        """Return another input that sends what ``x`` sends; None if there is none."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.entered(x))


class Plain(Network):
    """Each entry enters as it is, and one of them a second time."""

    width = 9

    def entered(self, x: Tensor) -> Tensor:
        return torch.cat([x, 2 * x[:, 6:7] - 1], 1)


class Gated(Network):
    """The first three entries enter where the last one is positive, which it is."""

    def entered(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :3] * (x[:, 7:] > 0), x[:, 3:]], 1)


class Masked(Gated):
    """The same, but the last entry masks them, so that nothing of them enters."""

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:3] + 0.5, x[3:]])


class Clipped(Network):
    """Entries are clipped to [-0.5, 0.5], and the first is beyond it."""

    def entered(self, x: Tensor) -> Tensor:
        return x.clamp(-0.5, 0.5)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:1] * 1.25, x[1:]])


class Hour(Network):
    """One entry is a part of a day."""

    width = 9

    def entered(self, x: Tensor) -> Tensor:
        turn = 2 * torch.pi * x[:, 6:7]
        return torch.cat([x[:, :6], x[:, 7:], turn.sin(), turn.cos()], 1)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:6], x[6:7] - 1, x[7:]])


class Even(Hour):
    """One entry enters by how far it is from 0.3."""

    def entered(self, x: Tensor) -> Tensor:
        far = (x[:, 6:7] - 0.3).square()
        return torch.cat([x[:, :6], x[:, 7:], far, far.cos()], 1)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:6], 0.6 - x[6:7], x[7:]])


class Product(Network):
    """Two entries enter by their squares and their product: both may change their signs."""

    width = 9

    def entered(self, x: Tensor) -> Tensor:
        a, b = x[:, 2:3], x[:, 5:6]
        return torch.cat([x[:, :2], x[:, 3:5], x[:, 6:], a.square(), a * b, b.square()], 1)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:2], -x[2:3], x[3:5], -x[5:6], x[6:]])


class Drugs(Network):
    """A record of six entries, and two drugs of four each, whose order makes no difference."""

    shape, width = (14,), 32

    def __init__(self) -> None:
        super().__init__()
        self.drug = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.record = nn.Sequential(nn.Linear(6, 16), nn.Tanh())

    def entered(self, x: Tensor) -> Tensor:
        both = self.drug(x[:, 6:10]) + self.drug(x[:, 10:])
        return torch.cat([self.record(x[:, :6]), both], 1)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:6], x[10:], x[6:10]])


class Doses(Drugs):
    """The same, but the second drug is told in halves of the first one's unit."""

    def entered(self, x: Tensor) -> Tensor:
        both = self.drug(x[:, 6:10]) + self.drug(2 * x[:, 10:])
        return torch.cat([self.record(x[:, :6]), both], 1)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:6], 2 * x[10:], x[6:10] / 2])


class Flags(Network):
    """A record of twelve entries, and two single numbers whose order makes no difference."""

    shape, width = (14,), 32

    def __init__(self) -> None:
        super().__init__()
        self.flag = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.record = nn.Sequential(nn.Linear(12, 16), nn.Tanh())

    def entered(self, x: Tensor) -> Tensor:
        both = self.flag(x[:, 3:4]) + self.flag(x[:, 8:9])
        own = torch.cat([x[:, :3], x[:, 4:8], x[:, 9:]], 1)
        return torch.cat([self.record(own), both], 1)

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:3], x[8:9], x[4:8], x[3:4], x[9:]])


class Siamese(Network):
    """A mask in channel 0, and two images in channels 1 to 3 and 4 to 6 that one encoder sees."""

    shape, width = (7, 4, 4), 24

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(192, 24), nn.Tanh()
        )
        self.mask = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.Tanh())

    def entered(self, x: Tensor) -> Tensor:
        return self.encoder(x[:, 1:4]) + self.encoder(x[:, 4:]) + self.mask(x[:, :1])

    def twin(self, x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[4:], x[1:4]])


class Cycle(Network):
    """A signal of twelve entries without a beginning: all shifts of it are alike."""

    shape, width = (1, 12), 16

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Sequential(
            nn.Conv1d(1, 12, 5, padding=2, padding_mode="circular"), nn.Tanh(),
            nn.Conv1d(12, 16, 3, padding=1, padding_mode="circular"), nn.Tanh(),
        )  # fmt: skip

    def entered(self, x: Tensor) -> Tensor:
        return self.own(x).mean(2)

    def twin(self, x: Tensor) -> Tensor:
        return x.roll(5, 1)


KINDS: tuple[type[Network], ...] = (
    Hour, Even, Siamese, Drugs, Flags, Masked, Plain, Product, Doses, Cycle, Clipped, Gated,
)  # fmt: skip
# Twins that the search for look-alikes alone does not find: notes/adversary.md.
HIDDEN: tuple[type[Network], ...] = (Masked, Product, Cycle)
PAIRED = tuple(one for one in KINDS if one not in (Plain, Gated))  # in which inputs have twins


def drawn(kind: type[Network], seed: int) -> tuple[Network, Tensor, Tensor | None]:
    """Return a network, an input of it, and that input's twin, if it has one."""
    torch.manual_seed(seed)
    model = kind().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    x = torch.randn(kind.shape).double()
    if isinstance(model, Hour):  # of middling size, where no list of extremes has it
        x[6] = torch.cat([x[:6], x[7:]]).sort().values[3:5].mean()
    if isinstance(model, Gated):
        x[7] = x[7].abs() * (-1 if kind is Masked else 1)
    if kind is Clipped:
        x = x.clamp(-0.45, 0.45)
        x[0] = 0.8
    return model, x, model.twin(x)
