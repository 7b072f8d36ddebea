"""The parts of the federation that NVIDIA FLARE builds from its configuration."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from torch import nn

from examples.flower.settings import EXAMPLE_SEED, Settings
from softleak.guard.nvflare import LeakageFilter, built


def network(size: int) -> nn.Module:
    """Return the paper's LeNet with tanh for images of this height and width."""
    return Settings(size=size).network()


def small_network(size: int) -> nn.Module:
    """Return a fully connected network, which is audited in a moment."""
    with torch.random.fork_rng():
        torch.manual_seed(EXAMPLE_SEED)
        wide = nn.Linear(3 * size * size, 24)
        return nn.Sequential(nn.Flatten(), wide, nn.Sigmoid(), nn.Linear(24, 10, bias=False))


class OneStep(Executor):  # type: ignore[misc]
    """A client that takes one step of SGD on its one image, and sends what came of it.

    Args:
        clients: the number of clients.
        size: the height and width of an image.
        lr: the learning rate.
        kind: ``WEIGHT_DIFF`` or ``WEIGHTS``.
        model: the network, as ``package.module:factory``.
    """

    def __init__(self, clients: int, size: int, lr: float, kind: str, model: str) -> None:
        super().__init__()
        self.settings, self.kind = Settings(clients=clients, size=size, lr=lr), kind
        self.model = model

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Return the weights after the step, or their difference to those received."""
        number = int(fl_ctx.get_identity_name().rpartition("-")[2]) - 1
        x, y = (part[number : number + 1] for part in self.settings.images())
        model = built(self.model, {"size": self.settings.size})
        received = from_shareable(shareable).data
        model.load_state_dict({name: torch.as_tensor(array) for name, array in received.items()})
        optimiser = torch.optim.SGD(model.parameters(), lr=self.settings.lr)
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        after = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        if self.kind == DataKind.WEIGHT_DIFF:
            after = {name: array - received[name] for name, array in after.items()}
        return DXO(self.kind, after).to_shareable()


class FirstWeights(ModelPersistor):  # type: ignore[misc]
    """A persistor that starts with the federation's network and writes the last weights.

    Args:
        size: the height and width of an image.
        last: the file of the last weights.
        model: the network, as ``package.module:factory``.
    """

    def __init__(self, size: int, last: str, model: str) -> None:
        super().__init__()
        self.size, self.last, self.model = size, Path(last), model

    def load_model(self, fl_ctx: FLContext) -> object:
        """Return the weights that the first round begins with."""
        state = built(self.model, {"size": self.size}).state_dict()
        return make_model_learnable({n: t.numpy() for n, t in state.items()}, {})

    def save_model(self, model: dict[str, object], fl_ctx: FLContext) -> None:
        """Write the weights."""
        np.savez(self.last, **model["weights"])  # type: ignore[arg-type]


class CuriousServer(Filter):  # type: ignore[misc]
    """A filter of the server that changes nothing and keeps a copy of all that passes.

    Args:
        folder: the folder of the copies.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self._rounds = Path(folder), Counter[str]()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Write the arrays that go to a client, or come from it, to a file of their own."""
        peer = fl_ctx.get_peer_context().get_identity_name()
        name = f"{self._rounds[peer]}-{peer}"
        self._rounds[peer] += 1
        direction = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION)
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            (self.folder / f"{name}-{direction}.error").write_text(str(code), "utf-8")
            return shareable
        dxo = from_shareable(shareable)
        np.savez(self.folder / f"{name}-{direction}.npz", **dxo.data)
        return shareable


class MetricsFile(AnalyticsReceiver):  # type: ignore[misc]
    """A receiver of the server that writes every number of the event stream to a file.

    Args:
        target: the file, a line of JSON per number.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = Path(target)

    def initialize(self, fl_ctx: FLContext) -> None:
        """Do nothing, because the file is opened for every number."""

    def save(self, fl_ctx: FLContext, shareable: Shareable, record_origin: str) -> None:
        """Append one number."""
        held = from_shareable(shareable).data
        line = {"client": record_origin, "name": held["track_key"], "value": held["track_value"]}
        with self.target.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def finalize(self, fl_ctx: FLContext) -> None:
        """Do nothing, because every number is written already."""


class BrokenFilter(LeakageFilter):
    """A filter with a fault: it fails while it looks at an update."""

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Fail."""
        raise ZeroDivisionError("a fault inside the filter")
