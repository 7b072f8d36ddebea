"""The configuration of the federation, as files that NVIDIA FLARE reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

FILTERED = "softleak.integrations.nvflare.LeakageFilter"
BROKEN = "examples.nvflare.parts.BrokenFilter"


@dataclass(frozen=True)
class FlareRun:
    """One federation in the simulator.

    Attributes:
        folder: the folder of the configuration and of all that is written.
        filtered: whether clients have the filter.
        broken: whether the filter of the last client has a fault.
        clients: the number of clients.
        rounds: the number of rounds.
        size: the height and width of an image.
        lr: the learning rate.
        kind: what clients send, ``WEIGHT_DIFF`` or ``WEIGHTS``.
        stop: the leaks that the filter is told to stop.
    """

    folder: Path
    filtered: bool
    broken: bool = False
    clients: int = 4
    rounds: int = 3
    size: int = 16
    lr: float = 0.02
    kind: str = "WEIGHT_DIFF"
    stop: tuple[str, ...] = ("input", "class", "label")

    @property
    def seen(self) -> Path:
        """The folder of what the server saw."""
        return self.folder.absolute() / "seen"

    @property
    def workspace(self) -> Path:
        """The folder of the simulator."""
        return self.folder.absolute() / "workspace"

    def file(self, name: str) -> Path:
        """Return the path of a file that the federation writes."""
        return self.folder.absolute() / name

    def write(self) -> Path:
        """Write the configuration of server and clients, and return its folder."""
        job = self.folder / "job"
        last = f"site-{self.clients}"
        others = [f"site-{n}" for n in range(1, self.clients + 1) if not (self.broken and n == self.clients)]
        apps = {"server": ["server"], "client": others, **({"broken": [last]} if self.broken else {})}
        meta = {"name": "softleak", "resource_spec": {}, "min_clients": self.clients, "deploy_map": apps}
        _write(job / "meta.json", meta)
        _write(job / "server" / "config" / "config_fed_server.json", self._server())
        for app in ("client", "broken"):
            if app in apps:
                path = FILTERED if app == "client" else BROKEN
                _write(job / app / "config" / "config_fed_client.json", self._client(path))
        # NVIDIA FLARE builds only what its administrator allows.
        allowed = [*DEFAULT_CLASS_ALLOW_LIST, "softleak.integrations.nvflare", "examples.nvflare"]
        _write(self.workspace / "local" / "resources.json", {"class_allow_list": allowed})
        self.seen.mkdir(parents=True, exist_ok=True)
        return job

    def _server(self) -> dict[str, Any]:
        curious = {"path": "examples.nvflare.parts.CuriousServer", "args": {"folder": str(self.seen)}}
        chain = [{"tasks": ["train"], "filters": [curious]}]
        weights = {"size": self.size, "last": str(self.file("last.npz"))}
        metrics = {"target": str(self.file("metrics.jsonl"))}
        fedavg = {"num_clients": self.clients, "num_rounds": self.rounds, "persistor_id": "first"}
        return {
            "format_version": 2,
            "workflows": [
                {
                    "id": "fedavg",
                    "path": "nvflare.app_common.workflows.fedavg.FedAvg",
                    "args": {**fedavg, "ignore_result_error": True},
                }
            ],
            "components": [
                {"id": "first", "path": "examples.nvflare.parts.FirstWeights", "args": weights},
                {"id": "metrics", "path": "examples.nvflare.parts.MetricsFile", "args": metrics},
            ],
            "task_data_filters": chain,
            "task_result_filters": chain,
        }

    def _client(self, path: str) -> dict[str, Any]:
        step = {
            "clients": self.clients, "size": self.size, "lr": self.lr, "kind": self.kind,
            "times": str(self.file("times.txt")),
        }  # fmt: skip
        guard = {
            "model": "examples.nvflare.parts:network", "model_args": {"size": self.size},
            "action": "defend", "stop": list(self.stop), "lr": self.lr,
            "input_shape": [3, self.size, self.size], "seeds": 2,
        }  # fmt: skip
        chain = [{"tasks": ["train"], "filters": [{"path": path, "args": guard}]}]
        return {
            "format_version": 2,
            "executors": [
                {
                    "tasks": ["train"],
                    "executor": {"path": "examples.nvflare.parts.OneStep", "args": step},
                }
            ],
            "task_result_filters": chain if self.filtered or self.broken else [],
            "task_data_filters": [],
            "components": [
                {
                    "id": "stream",
                    "path": "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
                    "args": {"events_to_convert": ["analytix_log_stats"]},
                }
            ],
        }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), "utf-8")
