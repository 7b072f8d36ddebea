"""A small network and clients of it, as messages of Flower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

LR = 0.1
SHAPE = (3, 8, 8)
CLASSES = 5  # few, for labels behind noise take longer with every class


def network(seed: int = 0) -> nn.Module:
    """A chain with a head that has no bias."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(192, 32),
            nn.Sigmoid(),
            nn.Linear(32, CLASSES, bias=False),
        )


def batch(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, *SHAPE, generator=generator)
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def trained(state: dict, samples: int, seed: int, steps: int = 1, lr: float = LR) -> dict:
    """The state after some steps of SGD."""
    model = network()
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = batch(samples, seed)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.state_dict()


def instruction(node: int, state: dict | None = None, **config: float) -> Message:
    """What a strategy sends."""
    arrays = ArrayRecord(state or network().state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1, **config})})
    return Message(content, dst_node_id=node, message_type="train")


def reply(to: Message, arrays: ArrayRecord | None, samples: int = 1) -> Message:
    """What a client answers."""
    content = RecordDict({"metrics": MetricRecord({"num-examples": samples})})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content, reply_to=to)


def client(
    samples: int = 1, seed: int = 0, steps: int = 1
) -> Callable[[Message, Context], Message]:
    """A client app that trains."""

    def train(message: Message, _: Context) -> Message:
        state = message.content.array_records["arrays"].to_torch_state_dict()
        return reply(message, ArrayRecord(trained(state, samples, seed, steps)), samples)

    return train


def context(node: int = 1) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


@dataclass
class Nodes:
    """Stands where the grid stands: strategies only ask it who is there."""

    ids: list[int] = field(default_factory=list)

    def get_node_ids(self) -> list[int]:
        return self.ids
