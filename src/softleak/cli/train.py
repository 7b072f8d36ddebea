"""This module carries out ``softleak train``: the trained networks the paper's tables need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from softleak import data
from softleak.atomic import make_folder
from softleak.cli.exits import mistakes
from softleak.cli.paper_options import TrainOptions
from softleak.experiments.recipes import RECIPES
from softleak.experiments.training import Epoch, Recipe, accuracy, save, train
from softleak.tensor_files import fingerprint


def carry_out(options: TrainOptions) -> None:
    """Train a network, measure it if there are images to test on, and write its checkpoint."""
    console = Console(highlight=False)
    recipe, test = _recipe(options), options.test
    if options.threads is not None:
        torch.set_num_threads(options.threads)

    def tell(epoch: Epoch) -> None:
        console.print(f"epoch {epoch.number} of {epoch.of}: loss {epoch.loss:.4f}")

    # Whatever is wrong is said before hours of training.
    with mistakes("Nothing was kept: weights are written after the last epoch."):
        make_folder(options.out)
        learnt = data.load(options.images, data.Split.TRAIN, recipe.size)
        unseen = None if test is None else data.load(test, data.Split.TEST, recipe.size)
        model = train(recipe, learnt, tell)
        notes = {"data": options.images.name, "data_sha256": _hash(options.images)}
        if test is not None and unseen is not None:
            measured = accuracy(model, unseen)
            notes |= {"test_data": test.name, "test_accuracy": f"{measured:.4f}"}
            console.print(f"accuracy {measured:.1%} on {escape(test.name)}")
        path = options.out / f"{options.network.value}.safetensors"
        save(model, recipe, path, **notes)
    console.print(f"written: {escape(str(path))}")


def _recipe(options: TrainOptions) -> Recipe:
    """Return the network's recipe with the changes that were asked for."""
    changes = {
        "epochs": options.epochs, "smoothing": options.smoothing, "mixup": options.mixup,
        "seed": options.seed,
    }  # fmt: skip
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(RECIPES[options.network.value], **given)  # type: ignore[arg-type]


def _hash(path: Path) -> str:
    return fingerprint(path) if path.is_file() else "a folder"
