"""Run a federation with the settings of Flower's PyTorch quickstart.

python -m examples.flower.quickstart [--guard] [--clients 5] [--rounds 2] [--out DIR]
    [--images 4000] [--pack FILE] [--local-epochs 1]

It trains a small CNN with batches of 32, SGD with momentum 0.9 and one local epoch. The round's
config says so, and the server's monitor reads it there. It says which classes each client's update
proves. With ``--guard`` every client has a guard that is told to stop that.

A client of the quickstart trains on 4,000 images, in 125 steps. So do these: each has 40 embedded
images of two classes, and shows them to the network mirrored and shifted until there are so many.
With ``--images 32`` a round is one step on different images, and with ``--pack`` the clients share
all images of a file.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from softleak.audit import Leak
from softleak.guard.flower import Action, LeakageGuard, LeakageMonitor, Question
from softleak.guard.flower.guard import Source, fresh
from softleak.paper import data

SHAPE = (3, 32, 32)
MOMENTUM, BATCH, LR = 0.9, 32, 0.1
SHIFT = 4  # the number of pixels by which an image is shifted at most when it is shown again
QUESTION = Question(input_shape=SHAPE)
CONFIG = {"lr": LR, "momentum": MOMENTUM, "batch-size": BATCH, "local-epochs": 1}


class Net(nn.Module):
    """The quickstart's network of two convolutions and three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, 10) of images (N, 3, 32, 32)."""
        for layer in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(layer(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))  # type: ignore[no-any-return]


def network(seed: int = 0) -> Net:
    """Return the network that the first round begins with, the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


@cache
def pixels_of(pack: Path) -> tuple[Tensor, Tensor]:
    """Return the images (N, 3, 32, 32) of a file, from −1 to 1, and their classes (N,)."""
    held = data.load_pack(pack)
    x = torch.stack([held.pixels(index) for index in range(len(held))])
    return 2 * x - 1, held.labels


def shown_again(x: Tensor, samples: int, seed: int) -> Tensor:
    """Return the images (N, C, H, W), and then mirrored and shifted ones, ``samples`` in all."""
    generator = torch.Generator().manual_seed(seed)
    seen = list(x[:samples])
    for index in range(len(x), samples):
        one = x[index % len(x)]
        mirrored = one.flip(2) if torch.rand((), generator=generator) < 0.5 else one
        shift = torch.randint(-SHIFT, SHIFT + 1, (2,), generator=generator).tolist()
        seen.append(mirrored.roll(shift, (1, 2)))
    return torch.stack(seen)


@dataclass(frozen=True)
class Client:
    """A client whose images are all of two classes, as in a skewed partition.

    Attributes:
        number: the number of the client, which decides its classes.
        samples: the number of its images. Of two classes 40 are embedded; if there are to be more,
            these come again, mirrored and shifted.
        pack: a file of images to use instead of the embedded ones.
        clients: the number of clients that the images of the file are dealt to, of all classes.
        epochs: the number of times that it trains on its images in a round.
    """

    number: int
    samples: int = 32
    pack: Path | None = None
    clients: int = 1
    epochs: int = 1

    @property
    def classes(self) -> tuple[int, int]:
        """The two classes of its images."""
        return 2 * self.number % 10, (2 * self.number + 5) % 10

    def images(self) -> tuple[Tensor, Tensor]:
        """Return its images (N, 3, 32, 32) and their classes (N,)."""
        if self.pack is not None:
            x, y = pixels_of(self.pack)
            return x[self.number :: self.clients], y[self.number :: self.clients]
        held = data.embedded()
        mine = (held.labels[:, None] == torch.tensor(self.classes)).any(1).nonzero()[:, 0]
        chosen = held.subset(mine)
        x = torch.stack([chosen.pixels(index) for index in range(len(chosen))])
        y = chosen.labels[torch.arange(self.samples) % len(chosen)]
        return 2 * shown_again(x, self.samples, self.number) - 1, y

    def train(self, message: Message, _: Context) -> Message:
        """Train for the local epochs, and return the weights."""
        model = network()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        rate = float(str(message.content.config_records["config"]["lr"]))
        optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
        x, y = self.images()
        for start in list(range(0, len(x), BATCH)) * self.epochs:
            batch = slice(start, start + BATCH)
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        content = RecordDict({
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        })  # fmt: skip
        return Message(content, reply_to=message)


def guard(
    action: Action = Action.DEFEND, source: Source = fresh, leak: Leak = Leak.COMPOSITION
) -> LeakageGuard:
    """Return a guard that is told to stop the server from proving a class."""
    stop = frozenset({leak})
    return LeakageGuard(network(), action, stop=stop, question=QUESTION, seeds=2, source=source)


class TimedFedAvg(FedAvg):
    """FedAvg that remembers when each round began."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.began: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the time, and do what FedAvg does."""
        self.began.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)


def monitor(folder: Path, plain: FedAvg | None = None) -> LeakageMonitor:
    """Return the server's strategy, which writes a log and a page to ``folder``."""
    names, plain = data.embedded().class_names, plain or TimedFedAvg()
    return LeakageMonitor(plain, network(), question=QUESTION, folder=folder, class_names=names)


def parts_of_rounds(watched: LeakageMonitor, began: list[float], ended: float) -> list[float]:
    """Return which part of each round after the first the monitor took.

    The first one holds the start of the simulation, and what is found out of the model once.
    """
    lengths = [end - start for start, end in itertools.pairwise([*began, ended])]
    spent = [watched.seconds[number] for number in sorted(watched.seconds)]
    return [part / whole for part, whole in zip(spent, lengths, strict=True)][1:]


def main() -> None:
    """Read the command line, and run the federation in Flower's simulation."""
    from flwr.simulation import run_simulation

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guard", action="store_true", help="give every client a guard")
    parser.add_argument("--clients", type=int, default=5, help="the number of clients")
    parser.add_argument("--rounds", type=int, default=2, help="the number of rounds")
    parser.add_argument("--images", type=int, default=4000, help="the images of a client")
    parser.add_argument("--local-epochs", type=int, default=1, help="the epochs of a round")
    parser.add_argument("--pack", type=Path, help="a file of CIFAR-10 images, dealt to the clients")
    parser.add_argument(
        "--out", type=Path, default=Path("quickstart"), help="the folder of the page"
    )
    given = parser.parse_args()
    mods: list[Mod] = [guard()] if given.guard else []
    client, server = ClientApp(mods=mods), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        one = Client(number, given.images, given.pack, given.clients, given.local_epochs)
        return one.train(message, context)

    @server.main()
    def serve(grid: Grid, _: Context) -> None:
        plain = TimedFedAvg()
        watched = monitor(given.out, plain)
        start = ArrayRecord(network().state_dict())
        config = ConfigRecord({**CONFIG, "local-epochs": given.local_epochs})
        began = time.perf_counter()
        watched.start(grid, start, num_rounds=given.rounds, train_config=config)
        ended = time.perf_counter()
        spent, rounds = sum(watched.seconds.values()), ended - began
        watched.finish()
        print(f"The monitor took {spent:.2f} s of {rounds:.2f} s, {100 * spent / rounds:.1f} %")
        later = parts_of_rounds(watched, plain.began, ended)
        if later:
            each = ", ".join(f"{100 * part:.1f}" for part in later)
            print(f"Of each round after the first: {each} %, median {100 * median(later):.1f} %")

    run_simulation(server, client, given.clients)
    print(f"The page: {given.out / 'index.html'}")


if __name__ == "__main__":
    # Ray refers to a module's objects by name, but would have to copy those of `__main__`.
    from examples.flower import quickstart

    quickstart.main()
