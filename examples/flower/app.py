"""The client and the server of a Flower app, to which softleak adds a mod and a wrapper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from examples.flower.settings import EXAMPLE_SEED, NORM, Settings
from softleak.guard.flower import Action, AuditEngine, LeakageGuard, LeakageMonitor, Question, Unfit
from softleak.paper import data


def client_app(settings: Settings, *, guarded: bool) -> ClientApp:
    """Return a client that takes one step of SGD on one image.

    Args:
        settings: the settings of the federation.
        guarded: whether a guard sees the update before it leaves.
    """
    question = Question(input_shape=settings.shape, normalisation=NORM)
    guard = LeakageGuard(
        settings.network(), Action.DEFEND, stop=settings.stop,
        question=question, seeds=settings.seeds, treatments=settings.treatments,
        source=_repeatable,
    )  # fmt: skip
    app = ClientApp(mods=[guard] if guarded else [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records["config"]
        partition = int(context.node_config["partition-id"])
        x, y = (part[partition : partition + 1] for part in settings.images())
        model = settings.network()
        arrays = message.content.array_records["arrays"]
        model.load_state_dict(arrays.to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=float(str(config["lr"])))
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        metrics = MetricRecord({"num-examples": 1, "partition": partition})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def _repeatable(context: Context, number: int) -> np.random.Generator:
    """Return noise that is the same in every run, for the figures; a real client uses `fresh`."""
    return np.random.default_rng([EXAMPLE_SEED, int(context.node_config["partition-id"]), number])


@dataclass
class Run:
    """One federation from start to end.

    Attributes:
        settings: the settings of the federation.
        folder: the folder of the monitor's log and page.
        engine: where the monitor's audits run.
        monitor: the monitor, once the server runs.
        result: what the strategy returned at the end.
        partitions: the image of each node, which only the score reads, afterwards.
        clock: the time before the first round and after each, in seconds.
    """

    settings: Settings
    folder: Path
    engine: AuditEngine
    monitor: LeakageMonitor | None = None
    result: Result = field(default_factory=Result)
    partitions: dict[int, int] = field(default_factory=dict)
    clock: list[float] = field(default_factory=list)

    def server_app(self) -> ServerApp:
        """Return a server that runs FedAvg with a monitor around it."""
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            question = Question(self.settings.attacked, self.settings.shape, NORM)
            model = self.settings.network()
            self.monitor = LeakageMonitor(
                _Remembering(self.partitions), model, question=question, folder=self.folder,
                class_names=data.embedded().class_names, unfit=Unfit.LEAVE_OUT, engine=self.engine,
            )  # fmt: skip
            self.result = self.monitor.start(
                grid, ArrayRecord(model.state_dict()), num_rounds=self.settings.rounds,
                train_config=ConfigRecord({"lr": self.settings.lr}), evaluate_fn=self._evaluate,
            )  # fmt: skip
            self.monitor.finish()  # before the simulation takes its Ray away

        return app

    def _evaluate(self, _: int, arrays: ArrayRecord) -> MetricRecord:
        """Return the loss on the clients' images and on others, and note the time."""
        self.clock.append(perf_counter())
        model = self.settings.network()
        model.load_state_dict(arrays.to_torch_state_dict())
        sets = {"loss": self.settings.images(), "loss-held-out": self.settings.held_out()}
        with torch.no_grad():
            losses = {name: float(F.cross_entropy(model(x), y)) for name, (x, y) in sets.items()}
        return MetricRecord(dict(losses))


class _Remembering(FedAvg):
    """FedAvg that remembers which node holds which image, for the score after the run.

    Args:
        partitions: the dictionary that is filled.
    """

    def __init__(self, partitions: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._partitions = partitions

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Note which node holds which image, and aggregate as FedAvg does."""
        replies = list(replies)
        for reply in replies:
            if reply.has_content():
                metrics = reply.content.metric_records["metrics"]
                self._partitions[reply.metadata.src_node_id] = int(str(metrics["partition"]))
        return super().aggregate_train(server_round, replies)
