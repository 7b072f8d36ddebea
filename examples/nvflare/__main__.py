"""Run a federation in NVIDIA FLARE's simulator: without the filter, with it, and with a fault.

python -m examples.nvflare [--clients 4] [--rounds 3] [--weights] [--mixed] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner

from examples.nvflare.job import BROKEN, FILTERED, OPEN, FlareRun
from examples.nvflare.score import ClientScore, score


def main() -> None:
    """Read the command line, run the federations and print their scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=16, help="height and width of an image")
    parser.add_argument("--stop", default="input,label", help="leaks to stop, such as input,class")
    parser.add_argument("--seeds", type=int, default=2, help="trials per setting of the noise")
    parser.add_argument("--small", action="store_true", help="a fully connected network")
    parser.add_argument("--weights", action="store_true", help="send weights, not differences")
    parser.add_argument("--mixed", action="store_true", help="one federation with all three kinds")
    parser.add_argument("--only", choices=("without", "with", "fault"), help="one of the three")
    parser.add_argument(
        "--match-seconds", type=float, default=0.0, metavar="S",
        help="how long the server matches gradients where it cannot compute the image",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("federation-nvflare"))
    given = parser.parse_args()
    plans = {
        "without": (OPEN,) * given.clients,
        "with": (FILTERED,) * given.clients,
        "fault": (*(FILTERED,) * (given.clients - 1), BROKEN),
    }
    if given.mixed:
        plans = {"mixed": (OPEN, FILTERED, BROKEN)}
    for name, kinds in plans.items():
        if given.only not in (None, name):
            continue
        run = FlareRun(
            given.out / name, kinds, given.rounds, given.size,
            data_kind="WEIGHTS" if given.weights else "WEIGHT_DIFF",
            stop=tuple(given.stop.split(",")),
            factory="small_network" if given.small else "network", seeds=given.seeds,
        )  # fmt: skip
        print_scores(name, *simulate(run, given.match_seconds))


def simulate(run: FlareRun, matching: float) -> tuple[dict[str, ClientScore], float]:
    """Run a federation, and return what the server has of each kind of clients, and the time.

    Args:
        run: the federation.
        matching: the seconds in which the server matches the gradients of an image.
    """
    job, start = run.write(), perf_counter()
    simulator = SimulatorRunner(
        job_folder=str(job), workspace=str(run.file("workspace")), n_clients=len(run.kinds),
        threads=len(run.kinds), log_config="ERROR",
    )  # fmt: skip
    if simulator.run():
        raise SystemExit("the simulator failed; its logs are in the folder of its workspace")
    seconds = perf_counter() - start
    found = score(run, matching)
    numbers = {kind: asdict(one) for kind, one in found.items()}
    run.file("scores.json").write_text(json.dumps({"seconds": seconds, **numbers}), "utf-8")
    return found, seconds


def print_scores(name: str, found: dict[str, ClientScore], seconds: float) -> None:
    """Print what the server has of each kind of clients."""
    print(f"\nFederation {name!r}, {seconds:.0f} s:")
    for kind, one in found.items():
        print(f"  {kind}: {one.words}")


if __name__ == "__main__":
    main()
