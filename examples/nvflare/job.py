"""The configuration of the federation, as files that NVIDIA FLARE reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

PARTS = "examples.nvflare.parts"
OPEN, FILTERED, BROKEN = "open", "filtered", "broken"  # the kinds of clients
FILTERS = {
    OPEN: None, FILTERED: "softleak.guard.nvflare.LeakageFilter",
    BROKEN: f"{PARTS}.BrokenFilter",
}  # fmt: skip


@dataclass(frozen=True)
class FlareRun:
    """One federation in the simulator, in which every client takes one step on its one image.

    Attributes:
        folder: the folder of the configuration and of all that is written.
        kinds: whether each client has no filter, the filter, or one with a fault.
        rounds: the number of rounds.
        size: the height and width of an image.
        lr: the learning rate.
        data_kind: what clients send, ``WEIGHT_DIFF`` or ``WEIGHTS``.
        stop: the leaks that the filter is told to stop.
        factory: the function of ``examples.nvflare.parts`` that makes the network.
        seeds: the number of trials for each setting of the noise.
    """

    folder: Path
    kinds: tuple[str, ...]
    rounds: int = 3
    size: int = 16
    lr: float = 0.02
    data_kind: str = "WEIGHT_DIFF"
    stop: tuple[str, ...] = ("input",)
    factory: str = "network"
    seeds: int = 2

    @property
    def model(self) -> str:
        """The network, as a configuration names it."""
        return f"{PARTS}:{self.factory}"

    @property
    def seen(self) -> Path:
        """The folder of what the server saw."""
        return self.file("seen")

    def file(self, name: str) -> Path:
        """Return the path of something that the federation writes."""
        return self.folder.absolute() / name

    def write(self) -> Path:
        """Write the configuration of server and clients, and return its folder."""
        job = self.folder / "job"
        sites: dict[str, list[str]] = {"server": ["server"]}
        for number, kind in enumerate(self.kinds, 1):
            sites.setdefault(kind, []).append(f"site-{number}")
        meta = {"name": "softleak", "min_clients": len(self.kinds), "deploy_map": sites}
        _write(job / "meta.json", meta)
        _write(job / "server" / "config" / "config_fed_server.json", self._server())
        for kind in set(self.kinds):
            _write(job / kind / "config" / "config_fed_client.json", self._client(FILTERS[kind]))
        # NVIDIA FLARE builds only what its administrator allows.
        allowed = [*DEFAULT_CLASS_ALLOW_LIST, "softleak.guard.nvflare", "examples.nvflare"]
        resources = self.file("workspace") / "local" / "resources.json"
        _write(resources, {"class_allow_list": allowed})
        self.seen.mkdir(parents=True, exist_ok=True)
        return job

    def _server(self) -> dict[str, Any]:
        curious = _part(f"{PARTS}.CuriousServer", folder=str(self.seen))
        chain = [{"tasks": ["train"], "filters": [curious]}]
        workflow = _part(
            "nvflare.app_common.workflows.fedavg.FedAvg", num_clients=len(self.kinds),
            num_rounds=self.rounds, persistor_id="first", ignore_result_error=True,
        )  # fmt: skip
        first = _part(
            f"{PARTS}.FirstWeights", size=self.size, last=str(self.file("last.npz")),
            model=self.model,
        )  # fmt: skip
        metrics = _part(f"{PARTS}.MetricsFile", target=str(self.file("metrics.jsonl")))
        return {
            "format_version": 2,
            "workflows": [{"id": "fedavg", **workflow}],
            "components": [{"id": "first", **first}, {"id": "metrics", **metrics}],
            "task_data_filters": chain,
            "task_result_filters": chain,
        }

    def _client(self, guard: str | None) -> dict[str, Any]:
        step = _part(
            f"{PARTS}.OneStep", clients=len(self.kinds), size=self.size, lr=self.lr,
            kind=self.data_kind, model=self.model,
        )  # fmt: skip
        made = _part(
            guard or "", model=self.model, model_args={"size": self.size}, action="defend",
            stop=list(self.stop), lr=self.lr, input_shape=[3, self.size, self.size],
            seeds=self.seeds,
        )  # fmt: skip
        stream = _part(
            "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
            events_to_convert=["analytix_log_stats"],
        )
        return {
            "format_version": 2,
            "executors": [{"tasks": ["train"], "executor": step}],
            "task_data_filters": [],
            "task_result_filters": [{"tasks": ["train"], "filters": [made]}] if guard else [],
            "components": [{"id": "stream", **stream}],
        }


def _part(path: str, **arguments: object) -> dict[str, Any]:
    return {"path": path, "args": arguments}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), "utf-8")
