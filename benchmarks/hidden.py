"""How tight the bounds are, whether an attack ever beats them, and what they cost.

``python -m benchmarks.hidden --out hidden.jsonl`` measures what is not yet in
the file and sums up all of it; a cell is written as soon as it is done.
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
from softleak.bounds.pixels import ImagePrior, PixelBounds
from softleak.core.subject import Subject
from softleak.matching import Adam, GaussNewton
from softleak.matching.gauss_newton.descent import DampedDescent
from softleak.matching.tasks import GivenLabel
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


SHAPE, IMAGES = (1, 8, 8), 10  # of the images that are attacked, and how many in a cell
LEVELS = (0.001, 0.01, 0.1)  # of noise, where the bound leaves some 50, 30 and 15 dB
STEPS_FROM_TRUTH, MATCHING_STEPS, NEWTON_STEPS = 5, 200, 15


def smooth() -> nn.Module:
    """Return a small smooth network."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 6, 3, 2, 1), nn.Tanh(),
        nn.Flatten(), nn.Linear(96, CLASSES),
    ).eval()  # fmt: skip


def pixels(images: int) -> Iterator[tuple[str, Callable[[], Cell]]]:
    """Yield cells: what attacks make of images of the prior, beside the bound on their error."""
    for number in range(math.ceil(images / IMAGES)):
        noise = LEVELS[number % len(LEVELS)]

        def cell(noise: float = noise, number: int = number) -> Cell:
            model, prior, label = smooth(), ImagePrior.of(SHAPE), torch.eye(CLASSES)[3]
            bounds = PixelBounds.of(Subject.of(model, SHAPE), label, prior)
            bound, generator = bounds.at(noise), torch.Generator().manual_seed(1000 + number)
            found: dict[str, list[float]] = {"matching": [], "newton": [], "truth": []}
            true = prior.draw(IMAGES, generator)
            shares = [
                sl.capture(model, u.view(SHAPE).float(), label).map(
                    lambda _, g: g + noise * torch.randn(g.shape, generator=generator)
                )
                for u in true
            ]
            given = GivenLabel(label)
            matched = sl.reconstruct_many(
                model, shares, label=given, objective=sl.L2(), optimiser=Adam(steps=MATCHING_STEPS)
            )
            for u, share, match in zip(true, shares, matched, strict=True):
                solved = sl.reconstruct(
                    model, share.expecting(noise), label=given,
                    optimiser=GaussNewton(descent=DampedDescent(steps=NEWTON_STEPS), escape=None),
                )  # fmt: skip
                near = _from_truth(bounds, u, share, noise)
                for name, one in (
                    ("matching", match.input),
                    ("newton", solved.input),
                    ("truth", near),
                ):
                    guess = prior.mean if one is None else one
                    off = guess.double().flatten() - u
                    found[name].append(float(off.square().mean()))
            return {"noise": noise, "bound": bound.error, "low": bound.low, **found}

        yield f"pixels {noise} {number}", cell


def _from_truth(bounds: PixelBounds, u: Tensor, share: sl.GradientShare, noise: float) -> Tensor:
    """Return the likeliest image near the true one, by steps of Gauss–Newton from it."""
    prior, sent = bounds.prior, torch.cat([g.double().flatten() for g in share.values()])
    precision = prior.basis.T @ (prior.basis / prior.variances[:, None])
    found = u.clone()
    for _ in range(STEPS_FROM_TRUTH):
        J = torch.func.jacfwd(bounds.gradient)(found).double()
        off = sent - bounds.gradient(found).double()
        slope = J.T @ off / noise**2 - precision @ (found - prior.mean.flatten())
        found = found + torch.linalg.solve(J.T @ J / noise**2 + precision, slope)
    return found


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
    images = [c for name, c in cells.items() if name.startswith("pixels")]
    for noise in sorted({c["noise"] for c in images}):
        some = [c for c in images if c["noise"] == noise]
        yield f"pixels at {noise}: bound {_decibels([some[0]['bound']])}, at 99 % " + ", ".join([
            f"{_decibels([some[0]['low']])}; {len(some) * IMAGES} images",
            *(f"{name} {_decibels([e for c in some for e in c[name]])}" for name in ATTACKERS),
        ])  # fmt: skip


ATTACKERS = ("matching", "newton", "truth")


def _decibels(errors: list[float]) -> str:
    """Return the PSNR of the mean of some errors, and one standard error of it."""
    mean = sum(errors) / len(errors)
    if len(errors) < 2:
        return f"{-10 * math.log10(mean):.2f} dB"
    spread = torch.tensor(errors).std().item() / math.sqrt(len(errors)) / mean
    return f"{-10 * math.log10(mean):.2f} ± {10 / math.log(10) * spread:.2f} dB"


PARTS = {"tightness": tightness, "attacks": attacks, "pixels": pixels, "cost": cost}


def main() -> None:
    """Measure the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("hidden.jsonl"))
    parser.add_argument("--trials", type=int, default=2_000, help="per cell of tightness")
    parser.add_argument("--attacks", type=int, default=10_000, help="of softleak's own attack")
    parser.add_argument("--images", type=int, default=200, help="that are attacked")
    parser.add_argument("--cells", type=int, default=10**6, help="the most to measure in this run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(given.out)
    for part in given.parts:
        size = {"attacks": given.attacks, "pixels": given.images}.get(part, given.trials)
        for name, cell in PARTS[part](size):
            if name in results.read() or not given.cells:
                continue
            found, given.cells = cell(), given.cells - 1
            results.add(name, found)
            print(name, json.dumps(found), flush=True)
    print("\n".join(summary(results.read())))


if __name__ == "__main__":
    main()
