"""``softleak train``: the trained networks the paper's tables need."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from softleak import data
from softleak.atomic import make_folder
from softleak.audit.folder import fingerprint
from softleak.cli.exits import mistakes
from softleak.experiments.recipes import RECIPES
from softleak.experiments.training import Epoch, accuracy, save, train

Trained = Enum("Trained", {name: name for name in RECIPES}, type=str)  # type: ignore[misc]


def train_command(
    network: Annotated[Trained, Argument(help="Which network.")],
    images: Annotated[Path, Option("--train", metavar="FILE|DIR", help="Images to learn from.")],
    test: Annotated[
        Path | None, Option(metavar="FILE|DIR", help="Images to measure the accuracy on.")
    ] = None,
    out: Annotated[Path, Option(metavar="DIR", help="Where the checkpoint goes.")] = Path("."),
    epochs: Annotated[int | None, Option(min=1, help="Other than the recipe's.")] = None,
    smoothing: Annotated[float | None, Option(min=0, max=1, help="ε of the labels.")] = None,
    mixup: Annotated[
        float | None, Option(min=0, max=1, help="The largest weight of a mixed-in image.")
    ] = None,
    seed: Annotated[int, Option(min=0)] = 0,
    threads: Annotated[int | None, Option(min=1, help="All cores, unless said.")] = None,
) -> None:
    """Train a network for `softleak reproduce --weights DIR`; the recipe is kept in its file.

    [bold]softleak train resnet18_cifar --train cifar10_train10k.npz --test cifar10_test.npz[/bold]
    """
    console = Console(highlight=False)
    changes = {"epochs": epochs, "smoothing": smoothing, "mixup": mixup, "seed": seed}
    given = {name: value for name, value in changes.items() if value is not None}
    recipe = replace(RECIPES[network.value], **given)  # type: ignore[arg-type]
    if threads is not None:
        torch.set_num_threads(threads)

    def tell(epoch: Epoch) -> None:
        console.print(f"epoch {epoch.number} of {epoch.of}: loss {epoch.loss:.4f}")

    with mistakes():  # whatever is wrong is said before hours of training
        make_folder(out)
        learnt = data.load(images, data.Split.TRAIN, recipe.size)
        unseen = None if test is None else data.load(test, data.Split.TEST, recipe.size)
        model = train(recipe, learnt, tell)
        notes = {"data": images.name, "data_sha256": _hash(images)}
        if test is not None and unseen is not None:
            measured = accuracy(model, unseen)
            notes |= {"test_data": test.name, "test_accuracy": f"{measured:.4f}"}
            console.print(f"accuracy {measured:.1%} on {escape(test.name)}")
        path = out / f"{network.value}.safetensors"
        save(model, recipe, path, **notes)
    console.print(f"written: {escape(str(path))}")


def _hash(path: Path) -> str:
    return fingerprint(path) if path.is_file() else "a folder"
