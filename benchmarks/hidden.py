"""How tight the bounds are, whether an attack ever beats them, and what they cost.

``python -m benchmarks.hidden tightness attacks cost --out hidden.jsonl`` measures what is not in
the file yet and sums up all of it; a cell is written as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.bounds.gaussians import Successes
from softleak.bounds.means import Candidates, flat
from softleak.paper import models

CLASSES = 10
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet": lambda: models.trained_lenet(),
    "MLP": lambda: models.mlp(3072),
    "ResNet18 (CIFAR)": lambda: models.resnet18_cifar(),
    "ViT": lambda: models.vit(),
    "BERT-like": lambda: bert(),
    "small MLP": lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, CLASSES)),
}
SIZES, STEPS = (1, 8, 32), (1, 5)
OWN_AIMS = (0.6, 0.9, 0.99)  # where softleak's attack has a chance, and takes a moment
AIMS = (0.3, 0.6, 0.9)  # the successes between which the noise of a cell is chosen, in turn
OWN_NETWORKS = ("small MLP", "small MLP", "small MLP", "LeNet")  # attacked by softleak, in turn
Cell = dict[str, Any]


class Reader(nn.Module):
    """A BERT of two small layers that returns logits."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        self.bert = BertForSequenceClassification(
            BertConfig(  # type: ignore[call-arg]
                vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=128, max_position_embeddings=32, num_labels=CLASSES,
            )
        )  # fmt: skip

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits (B, C) of token ids (B, T)."""
        logits: Tensor = self.bert(input_ids=input_ids).logits
        return logits


def bert() -> nn.Module:
    """Return a small BERT."""
    return Reader()


def drawn(name: str, size: int, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network in eval mode and a batch for it."""
    torch.manual_seed(seed)
    model = NETWORKS[name]().eval()
    if name == "BERT-like":
        x = torch.randint(1, 500, (size, 12))
    else:
        x = torch.randn(size, *((20,) if name == "small MLP" else (3, 32, 32)))
    return model, x, torch.randint(0, CLASSES, (size,))


def attacked(found: Candidates, noise: float, trials: int, seed: int) -> Successes:
    """Return how often the maximum-likelihood attacker is right on real updates behind noise."""
    generator = torch.Generator().manual_seed(seed)
    sent = torch.stack([flat(found.share(n), {}) for n in range(len(found.values))])
    squares = sent.double().square().sum(1)
    hits = 0
    for _ in range(trials):
        truth = int(torch.randint(len(sent), (1,), generator=generator))
        behind = sent[truth] + noise * torch.randn(sent.shape[1], generator=generator)
        hits += int((squares - 2 * (sent @ behind).double()).argmin()) == truth
    return Successes(hits, trials)


def tightness(trials: int) -> Iterator[tuple[str, Callable[[], Cell]]]:
    """Yield cells: the attacker who attains the bound, on what clients really send."""
    for number, (name, size, steps) in enumerate(
        (n, b, s) for b in SIZES for s in STEPS for n in list(NETWORKS)[:5]
    ):
        aim = AIMS[number % len(AIMS)]

        def cell(name: str = name, size: int = size, steps: int = steps, aim: float = aim) -> Cell:
            model, x, y = drawn(name, size, size)
            client = sl.Client() if steps == 1 else sl.Client(lr=0.01, steps=steps)
            found = Candidates.of(model, x, y, client)
            mixture = found.means().mixture()
            noise = mixture.weakest_noise(aim, 4_000) or 0.0
            bound = mixture.best_attack(noise, 20_000, 1)
            best = attacked(
                found, noise, max(trials // (10 if name.startswith("Res") else 1), 50), 2
            )
            low, high = bound.interval
            return {
                "network": name, "batch": size, "steps": steps, "noise": noise,
                "bound": bound.rate, "interval": [low, high],
                "attacker": best.rate, "trials": best.trials,
                "within": best.interval[0] <= high and best.interval[1] >= low,
            }  # fmt: skip

        yield f"tightness {name} {size} {steps}", cell


def attacks(trials: int) -> Iterator[tuple[str, Callable[[], Cell]]]:
    """Yield cells: softleak's own attack on the label, beside the bound of the same samples."""
    per_cell = 100
    for number in range(math.ceil(trials / per_cell)):
        name = OWN_NETWORKS[number % len(OWN_NETWORKS)]

        def cell(name: str = name, number: int = number) -> Cell:
            model, x, _ = drawn(name, 1, 1000 + number)
            found = Candidates.of(model, x, torch.zeros(1, dtype=torch.long), sl.Client())
            mixture = found.means().mixture()
            noise = mixture.weakest_noise(OWN_AIMS[number % len(OWN_AIMS)], 4_000) or 0.0
            bound = mixture.best_attack(noise, 20_000, 1)
            generator = torch.Generator().manual_seed(number)
            truth = torch.randint(0, CLASSES, (per_cell,), generator=generator).tolist()
            shares = [
                found.share(t).map(
                    lambda _, g: g + noise * torch.randn(g.shape, generator=generator)
                )
                for t in truth
            ]
            start = time.perf_counter()
            named = sl.recover_labels(model, [s.expecting(noise) for s in shares], scale="known")
            hits = sum(r.class_index == t for r, t in zip(named, truth, strict=True))
            return {
                "network": name, "noise": noise, "bound": bound.rate,
                "interval": list(bound.interval), "hits": hits, "trials": per_cell,
                "beats": Successes(hits, per_cell).interval[0] > bound.interval[1],
                "seconds": time.perf_counter() - start,
            }  # fmt: skip

        yield f"attacks {name} {number}", cell


def cost(_: int) -> Iterator[tuple[str, Callable[[], Cell]]]:
    """Yield cells: the time of a bound, in backward passes where there are few classes."""

    def ten() -> Cell:
        model, x, y = drawn("ResNet18 (CIFAR)", 1, 1)
        backward = _seconds(lambda: sl.capture(model, x, y))
        bound = _seconds(lambda: sl.prove_hidden(model, x, y, noise=1.0))
        return {"backward": backward, "bound": bound, "passes_per_class": bound / backward / 10}

    def hundred() -> Cell:
        torch.manual_seed(1)
        model, x = models.resnet18_cifar(classes=100).eval(), torch.randn(32, 3, 32, 32)
        y = torch.randint(0, 100, (32,))
        return {"bound": _seconds(lambda: sl.prove_hidden(model, x, y, noise=1.0), 1)}

    yield "cost 10 classes", ten
    yield "cost 100 classes, batch of 32", hundred


def _seconds(work: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


@dataclass(frozen=True)
class Results:
    """The file of all cells that were measured."""

    path: Path

    def read(self) -> dict[str, Cell]:
        """Return every cell by its name."""
        if not self.path.exists():
            return {}
        lines = self.path.read_text().splitlines()
        return {cell.pop("cell"): cell for cell in map(json.loads, lines)}

    def add(self, name: str, cell: Cell) -> None:
        """Write a cell."""
        with self.path.open("a") as file:
            file.write(json.dumps({"cell": name, **cell}) + "\n")


def summary(cells: dict[str, Cell]) -> Iterator[str]:
    """Yield what the cells say together."""
    tight = [c for name, c in cells.items() if name.startswith("tightness")]
    if tight:
        yield f"tightness: within the interval in {sum(c['within'] for c in tight)} of {len(tight)}"
    own = [c for name, c in cells.items() if name.startswith("attacks")]
    if own:
        hits, trials = sum(c["hits"] for c in own), sum(c["trials"] for c in own)
        most = sum(c["bound"] * c["trials"] for c in own)
        yield (
            f"attacks: right {hits} of {trials} times, {most:.0f} expected of the best; "
            f"beats the bound in {sum(c['beats'] for c in own)} of {len(own)} cells"
        )


PARTS = {"tightness": tightness, "attacks": attacks, "cost": cost}


def main() -> None:
    """Measure the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("hidden.jsonl"))
    parser.add_argument("--trials", type=int, default=2_000, help="per cell of tightness")
    parser.add_argument("--attacks", type=int, default=10_000, help="of softleak's own attack")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(given.out)
    for part in given.parts:
        for name, cell in PARTS[part](given.attacks if part == "attacks" else given.trials):
            if name in results.read():
                continue
            found = cell()
            results.add(name, found)
            print(name, json.dumps(found), flush=True)
    print("\n".join(summary(results.read())))


if __name__ == "__main__":
    main()
