"""Class proportions behind an epoch of batches, with intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import softleak as sl
from softleak.core.errors import DataError
from softleak.labels.local.proportions import (
    ProportionReader,
    StandIns,
    _whole,
    draw_client,
    draw_counts,
)
from softleak.paper import models

RUNS = 40  # simulated clients


@pytest.fixture(scope="module")
def federation():
    """Five classes of Gaussian blobs: public images, and a client of 60 samples."""
    torch.manual_seed(0)
    centres = torch.randn(5, 8)
    classes = torch.arange(200) % 5
    images = centres[classes] + 0.7 * torch.randn(200, 8)
    model = models.mlp(8, (16,), 5).eval()
    client = sl.Client(lr=0.02, epochs=1, batch_size=16, momentum=0.9)
    return (
        sl.Subject.of(model, (8,)),
        client,
        StandIns(images[:100], classes[:100]),
        images,
        classes,
    )


def test_intervals_hold_on_other_clients(federation):
    subject, client, public, images, classes = federation
    reader = ProportionReader.of(subject, client, 60, public, RUNS)
    random, generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    own = StandIns(images[100:], classes[100:])
    held, off = [], []
    for _ in range(25):
        x, y = draw_client(subject, draw_counts(random, 5, 60), own, generator)
        true = torch.bincount(y, minlength=5).double() / 60
        found = reader.read(client.share(subject.model, x, y))
        held.append((found.interval[0] <= true) & (true <= found.interval[1]))
        off.append(float((found.mean - true).abs().sum()))
    # 125 entries at 90 %: three standard errors are 8 %, and the quantile has its own error.
    assert 0.78 <= float(torch.stack(held).double().mean()) <= 0.99
    # Always guessing a fifth each is off by more than 0.5 on such clients.
    assert sum(off) / len(off) < 0.35


def test_parts_are_whole_numbers_of_samples_and_sum_to_one():
    raw = torch.tensor([[0.62, 0.30, -0.1, 0.08], [0.26, 0.24, 0.25, 0.25], [-1.0, -1.0, -2.0, 0]])
    counts = 10 * _whole(raw.double(), 10)
    assert counts.sum(1).tolist() == [10, 10, 10]
    assert counts[0].tolist() == [6, 3, 0, 1]
    assert float((counts - counts.round()).abs().max()) < 1e-12
    assert bool(((counts[1] - 2.5).abs() <= 0.5 + 1e-12).all())


def test_the_direction_that_is_read_gives_every_image_the_same_weight():
    torch.manual_seed(1)
    lengths = torch.exp(0.5 * torch.randn(400, 1))
    # One entry of the feature is the same for every image, as the input of a bias is.
    images = torch.cat([lengths * torch.randn(400, 5).abs(), torch.full((400, 1), 3.0)], 1)
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(6, 3, bias=False))
    subject, classes = sl.Subject.of(model, (6,)), torch.arange(400) % 3
    client = sl.Client(lr=0.01, epochs=1, batch_size=10)
    public = StandIns(images[:200], classes[:200])
    along = ProportionReader.of(subject, client, 10, public, RUNS).along
    weighed = images[200:].double() @ along
    plain = images[200:].double() @ images[:200].double().mean(0)
    assert float(weighed.std() / weighed.mean()) < 0.5 * float(plain.std() / plain.mean())


def test_noise_stands_in_by_default_and_says_so(federation):
    subject, client, _, _, _ = federation
    reader = ProportionReader.of(subject, client, 60, runs=20)
    found = reader.read(client.share(subject.model, torch.randn(60, 8), torch.arange(60) % 5))
    assert "noise" in found.message
    assert float(found.mean.sum()) == pytest.approx(1)


def test_stand_ins_of_every_class_are_needed(federation):
    subject, client, public, _, _ = federation
    few = StandIns(public.images[:3], public.classes[:3])
    with pytest.raises(DataError, match="no image of class"):
        ProportionReader.of(subject, client, 60, few, RUNS)
    with pytest.raises(DataError):
        StandIns(public.images, public.classes[:3])
