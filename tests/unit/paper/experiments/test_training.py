from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from softleak.cli import app
from softleak.paper import data, models
from softleak.paper.training import RECIPES, Recipe, accuracy, batches, train

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
    first, second = (train(RECIPE, images, lambda _, loss: told.append(loss)) for _ in range(2))
    assert told[2] < told[0]
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_labels_stay_labels_however_they_are_mixed(images):
    for x, y in batches(images, RECIPE, torch.Generator().manual_seed(0)):
        assert x.shape == (50, 3, 32, 32)
        assert torch.allclose(y.sum(1), torch.ones(50))
        assert bool((y >= 0.1 / 10 - 1e-6).all())


def run(*arguments):
    return CliRunner().invoke(app, ["train", "lenet", "--epochs", "1", *map(str, arguments)])


@pytest.fixture
def pack(tmp_path, images):
    path = tmp_path / "train.npz"
    np.savez(path, x=images.images.numpy(), y=images.labels.numpy())
    return path


def test_the_command_writes_weights_that_load_and_their_recipe(tmp_path, pack):
    done = run("--train", pack, "--test", pack, "--out", tmp_path / "w")
    assert done.exit_code == 0, done.output
    path = tmp_path / "w" / "lenet.safetensors"
    with safe_open(path, "pt") as file:
        notes = file.metadata()
    assert notes["epochs"] == "1"
    assert notes["lr"] == str(RECIPES["lenet"].lr)
    model = models.load_weights(models.lenet(), path).eval()
    assert f"{accuracy(model, data.load(pack)):.4f}" == notes["test_accuracy"]


def test_what_is_wrong_is_said_before_anything_is_trained(tmp_path, pack):
    wrong = {
        "cannot make the folder": ["--out", pack / "w"],
        "No data at": ["--out", tmp_path, "--test", tmp_path / "none.npz"],
    }
    for words, arguments in wrong.items():
        done = run("--train", pack, *arguments)
        assert done.exit_code == 2, done.output
        assert words in done.output
        assert "epoch" not in done.output


def test_photos_of_different_sizes_are_made_the_networks(tmp_path, images):
    image = pytest.importorskip("PIL.Image")
    for label in range(10):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True)
        picture = image.fromarray(images.images[label].numpy())
        picture.resize((40 + label, 36)).save(folder / "photo.png")
    done = run("--train", tmp_path / "photos", "--out", tmp_path)
    assert done.exit_code == 0, done.output
