from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import softleak as sl
from softleak.paper import data, models
from softleak.paper.networks import Shelf

ROOT = Path(__file__).resolve().parents[1]

# A busy machine makes a single example slow, which says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Where results depend on rounding; tools/machines.py runs these again as other machines round.
NUMERICAL = (
    "tests/paper/test_inversion.py",
    "tests/properties/test_label_recovery.py",
    "tests/unit/inversion/",
    "tests/unit/labels/",
    "tests/unit/matching/",
    "tests/unit/paper/classic/",
    "tests/unit/test_factors.py",
    "tests/unit/test_untrusted_files.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(NUMERICAL) and item.get_closest_marker("once") is None:
            item.add_marker(pytest.mark.numerical)


@pytest.fixture(autouse=True)
def _seed() -> None:
    # torch.manual_seed would also note the stack for each kind of accelerator that is absent.
    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def images() -> data.ImageSet:
    return data.embedded()


@pytest.fixture(scope="session")
def trained() -> torch.nn.Module:
    return models.trained_lenet()


@pytest.fixture(scope="session")
def shelf() -> Shelf:
    """Data packs of SOFTLEAK_DATA, or beside the checkout as in CI; none if there are none."""
    folder = Path(os.environ.get("SOFTLEAK_DATA", ROOT.parent / "shared" / "data"))
    return Shelf(folder if folder.is_dir() else None)


@pytest.fixture(scope="session")
def packs(shelf) -> Path:
    """The folder of data packs."""
    if shelf.data is None:
        pytest.skip("needs the data packs: set SOFTLEAK_DATA")
    return shelf.data


@pytest.fixture(scope="session")
def draw(images):
    """Samples of one kind, the same in every run.

    Images of 16 pixels are inverted ten times faster than those of 32.
    """

    def samples(
        augmentation: data.Augmentation, count: int, seed: int = 1, size: int = 32
    ) -> list[data.Sample]:
        own = images.resized(size)
        return list(data.samples(own, augmentation, count, seed, data.CIFAR10_NORM))

    return samples


@pytest.fixture(scope="session")
def shares(trained, draw):
    """Shares and true labels of the trained LeNet."""

    def make(augmentation: data.Augmentation, count: int, model=None, seed: int = 1):
        drawn = draw(augmentation, count, seed)
        captured = [sl.capture(model or trained, s.x, s.y) for s in drawn]
        return captured, [s.y for s in drawn]

    return make


@pytest.fixture
def interruptible():
    """Ctrl-C raises, as on a terminal; a process started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
