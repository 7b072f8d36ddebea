"""Run the federation twice, without and with the guard, and write a page about both.

python -m examples.flower [--clients 20] [--rounds 2] [--images-only] [--noise-only] [--no-guard]
    [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.simulation import run_simulation

from examples.flower.app import Run, client_app
from examples.flower.score import Score, score
from examples.flower.settings import Settings
from softleak.guard.flower import AuditEngine
from softleak.guard.flower.monitor import LIMITS_PICTURES, Federation, write_federations

TITLES = {False: "Without a guard", True: "With the guard"}
NOTES = {
    False: "Every client sends its weights after one step on one image.",
    True: "Every client audits its update and adds the weakest noise it finds to hide {} from this "
    "attack.",
}


def main() -> None:
    """Read the command line, run the federations and print their scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    for setting in fields(Settings):
        if setting.type != "bool":
            kind = float if setting.name == "lr" else int
            parser.add_argument(f"--{setting.name}", type=kind, default=setting.default)
    parser.add_argument(
        "--images-only",
        action="store_false",
        dest="hide_class",
        help="hide images and not classes",
    )
    parser.add_argument(
        "--noise-only",
        action="store_true",
        help="add noise alone, without pruning or clipping",
    )
    parser.add_argument("--no-guard", action="store_true", help="run without a guard only")
    parser.add_argument(
        "--out", type=Path, default=Path("federation"), help="the folder of the pages"
    )
    given = vars(parser.parse_args())
    folder, only = given.pop("out"), given.pop("no_guard")
    scores = federate(Settings(**given), folder, (False,) if only else (False, True))
    for guarded, found in scores.items():
        print(f"\n{TITLES[guarded]}")
        for name, value in found.facts:
            print(f"  {name}: {value}")
    print(f"\nThe page: {folder / 'index.html'}")


def federate(settings: Settings, folder: Path, kinds: Sequence[bool]) -> dict[bool, Score]:
    """Run a federation of each kind, and write the page at ``folder``/index.html.

    Args:
        settings: the settings of both federations.
        folder: the folder of pages, logs and scores.
        kinds: whether each federation has guards.
    """
    runs, scores = [], {}
    for guarded in kinds:
        # Labels behind noise take longer, so they go where aggregation need not wait for them.
        engine = AuditEngine.RAY if guarded else AuditEngine.INLINE
        run = Run(settings, folder / ("guarded" if guarded else "open"), engine)
        run_simulation(
            run.server_app(), client_app(settings, guarded=guarded), settings.clients,
            backend_config=settings.backend,
        )  # fmt: skip
        scores[guarded], pictures = score(run)
        rounds = run.monitor.rounds if run.monitor else []
        facts = scores[guarded].facts
        hidden = " and ".join(sorted(leak.value for leak in settings.stop)).replace(
            "input", "image"
        )
        note = NOTES[guarded].format(hidden)
        runs.append(Federation(TITLES[guarded], note, rounds, pictures[:LIMITS_PICTURES], facts))
    seen = [f"{TITLES[g].lower()} {s.images} of {s.attacked}" for g, s in scores.items()]
    title = f"Images the server sees: {', '.join(seen)}."
    write_federations(folder / "index.html", title, runs)
    numbers = {"with" if guarded else "without": asdict(s) for guarded, s in scores.items()}
    (folder / "scores.json").write_text(json.dumps(numbers, indent=1), "utf-8")
    return scores


if __name__ == "__main__":
    main()
