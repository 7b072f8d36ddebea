"""Run the federation twice, without and with the guard, and write a page about both.

python -m examples.flower [--clients 50] [--rounds 4] [--out federation]
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, fields
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.simulation import run_simulation

from examples.flower.app import Run, client_app
from examples.flower.score import Score, score
from examples.flower.settings import Settings
from softleak.integrations.flower import Engine
from softleak.integrations.flower.page import SHOWN, Federation, write_federations


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for setting in fields(Settings):
        kind = float if setting.name == "lr" else int
        parser.add_argument(f"--{setting.name}", type=kind, default=setting.default)
    parser.add_argument("--out", type=Path, default=Path("federation"))
    given = vars(parser.parse_args())
    folder = given.pop("out")
    scores = federate(Settings(**given), folder)
    for title, found in zip(("without a guard", "with the guard"), scores, strict=True):
        print(f"\n{title}")
        for name, value in found.facts:
            print(f"  {name}: {value}")
    print(f"\nThe page: {folder / 'index.html'}")


def federate(settings: Settings, folder: Path) -> tuple[Score, Score]:
    """Both federations, and the page at ``folder``/index.html."""
    runs, scores = [], []
    for guarded in (False, True):
        # Labels behind noise take longer, so they go where aggregation need not wait for them.
        engine = Engine.RAY if guarded else Engine.INLINE
        run = Run(settings, folder / ("guarded" if guarded else "open"), engine)
        run_simulation(
            run.server_app(), client_app(settings, guarded=guarded), settings.clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )  # fmt: skip
        found, pictures = score(run)
        title = "With the guard" if guarded else "Without a guard"
        note = (
            "Every client audits its update and adds the weakest noise it finds to hide class and "
            "image from this attack."
            if guarded
            else "Every client sends its weights after one step on one image."
        )
        rounds = run.monitor.rounds if run.monitor else []
        runs.append(Federation(title, note, rounds, pictures[:SHOWN], found.facts))
        scores.append(found)
    before, after = scores
    title = (
        f"Without a guard the server sees {before.images} of {before.attacked} images; with it, "
        f"{after.images} of {after.attacked}."
    )
    write_federations(folder / "index.html", title, runs)
    numbers = {"without": asdict(before), "with": asdict(after)}
    (folder / "scores.json").write_text(json.dumps(numbers, indent=1), "utf-8")
    return before, after


if __name__ == "__main__":
    main()
