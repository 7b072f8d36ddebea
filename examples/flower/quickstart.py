"""A federation with the settings of Flower's PyTorch quickstart.

python -m examples.flower.quickstart [--guard] [--clients 5] [--rounds 2] [--out DIR]

A small CNN, batches of 32, SGD with momentum 0.9, one local epoch; images are the embedded ones.
The server's monitor says which classes each client's update proves. With ``--guard`` every client
has a guard that is told to stop that.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from softleak import data
from softleak.audit import Leak
from softleak.integrations.flower import Action, LeakageGuard, LeakageMonitor, Question
from softleak.integrations.flower.remedy import Source, fresh

SHAPE = (3, 32, 32)
MOMENTUM, BATCH, LR = 0.9, 32, 0.1
QUESTION = Question(input_shape=SHAPE)


class Net(nn.Module):
    """Two convolutions and three linear layers, with ReLU and max-pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, 32, 32) to logits (N, 10)."""
        for layer in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(layer(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))  # type: ignore[no-any-return]


def network(seed: int = 0) -> Net:
    """The network every round begins with, the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


@dataclass(frozen=True)
class Client:
    """A client whose images are all of two classes, as those of a skewed partition may be."""

    number: int
    samples: int = 32  # of the 40 that are embedded of two classes

    @property
    def classes(self) -> tuple[int, int]:
        """The classes of its images."""
        return 2 * self.number % 10, (2 * self.number + 5) % 10

    def images(self) -> tuple[Tensor, Tensor]:
        """Its images (N, 3, 32, 32) and their classes (N,)."""
        held = data.embedded()
        mine = (held.labels[:, None] == torch.tensor(self.classes)).any(1).nonzero()[:, 0]
        chosen = held.subset(mine[: self.samples])
        x = torch.stack([chosen.pixels(index) for index in range(len(chosen))])
        return 2 * x - 1, chosen.labels

    def train(self, message: Message, _: Context) -> Message:
        """One local epoch."""
        model = network()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        rate = float(str(message.content.config_records["config"]["lr"]))
        optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
        x, y = self.images()
        for start in range(0, len(x), BATCH):
            batch = slice(start, start + BATCH)
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        content = RecordDict({
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        })  # fmt: skip
        return Message(content, reply_to=message)


def guard(action: Action = Action.DEFEND, source: Source = fresh) -> LeakageGuard:
    """A guard that does not let the server prove a class."""
    stop = frozenset({Leak.COMPOSITION})
    return LeakageGuard(network(), action, stop=stop, question=QUESTION, seeds=2, source=source)


def monitor(folder: Path) -> LeakageMonitor:
    """The server's strategy, with a log and a page in ``folder``."""
    names = data.embedded().class_names
    plain = FedAvg(fraction_evaluate=0.0)
    return LeakageMonitor(plain, network(), question=QUESTION, folder=folder, class_names=names)


def main() -> None:
    """From the command line, in Flower's simulation."""
    from flwr.simulation import run_simulation

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guard", action="store_true", help="clients stop class composition")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("quickstart"))
    given = parser.parse_args()
    client, server = ClientApp(mods=[guard()] if given.guard else []), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        return Client(int(context.node_config["partition-id"])).train(message, context)

    @server.main()
    def serve(grid: Grid, _: Context) -> None:
        watched = monitor(given.out)
        start, config = ArrayRecord(network().state_dict()), ConfigRecord({"lr": LR})
        watched.start(grid, start, num_rounds=given.rounds, train_config=config)
        watched.finish()

    run_simulation(server, client, given.clients)
    print(f"The page: {given.out / 'index.html'}")


if __name__ == "__main__":
    # Ray sends what is of a module by its name; what is of `__main__` it would have to copy.
    from examples.flower import quickstart

    quickstart.main()
