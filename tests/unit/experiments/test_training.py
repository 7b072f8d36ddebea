from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import safe_open
from typer.testing import CliRunner

from softleak import data, models
from softleak.cli import app
from softleak.experiments.recipes import RECIPES
from softleak.experiments.training import Recipe, accuracy, batches, train

RECIPE = Recipe("lenet", epochs=3, lr=1e-2, gain=2.5, batch=50, mixup=0.5, smoothing=0.1)


def test_the_recipe_of_the_network_that_comes_with_the_package_is_the_one_in_its_file():
    folder = Path(models.__file__).parent / "weights"
    with safe_open(folder / "lenet_cifar10.safetensors", "pt") as file:
        told = file.metadata()
    recipe = {name: str(value) for name, value in asdict(RECIPES["lenet"]).items()}
    assert {name: told[name] for name in recipe if name in told} == {
        name: value for name, value in recipe.items() if name in told
    }
    assert {"epochs", "lr", "weight_decay", "batch", "gain", "seed"} <= told.keys()


def test_training_lowers_the_loss_and_repeats_itself(images):
    told = []
    first, second = (train(RECIPE, images, told.append) for _ in range(2))
    assert told[2].loss < told[0].loss
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_labels_stay_labels_however_they_are_mixed(images):
    for x, y in batches(images, RECIPE, torch.Generator().manual_seed(0)):
        assert x.shape == (50, 3, 32, 32)
        assert torch.allclose(y.sum(1), torch.ones(50))
        assert bool((y >= 0.1 / 10 - 1e-6).all())


def test_the_command_writes_weights_that_load_and_their_recipe(tmp_path, images):
    pack = tmp_path / "train.npz"
    import numpy as np

    np.savez(pack, x=images.images.numpy(), y=images.labels.numpy())
    done = CliRunner().invoke(
        app,
        ["train", "lenet", "--train", str(pack), "--test", str(pack), "--epochs", "1",
         "--out", str(tmp_path / "w")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    path = tmp_path / "w" / "lenet.safetensors"
    with safe_open(path, "pt") as file:
        notes = file.metadata()
    assert notes["epochs"] == "1"
    assert notes["lr"] == str(RECIPES["lenet"].lr)
    model = models.load_weights(models.lenet(), path).eval()
    assert f"{accuracy(model, data.load(pack)):.4f}" == notes["test_accuracy"]
