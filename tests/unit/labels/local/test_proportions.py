"""Class proportions behind an epoch of batches, with intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import softleak as sl
from softleak import models
from softleak.errors import DataError
from softleak.labels.local.proportions import (
    ProportionReader,
    ProportionSettings,
    StandIns,
    _draw,
    _draw_counts,
)

SETTINGS = ProportionSettings(runs=40)


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
    reader = ProportionReader.of(subject, client, 60, public, SETTINGS)
    random, generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    own = StandIns(images[100:], classes[100:])
    held, off = [], []
    for _ in range(25):
        x, y = _draw(subject, _draw_counts(random, 5, 60, SETTINGS), own, generator)
        true = torch.bincount(y, minlength=5).double() / 60
        found = reader.read(client.share(subject.model, x, y))
        held.append((found.interval[0] <= true) & (true <= found.interval[1]))
        off.append(float((found.mean - true).abs().sum()))
    # 125 entries at 90 %: three standard errors are 8 %, and the quantile has its own error.
    assert 0.78 <= float(torch.stack(held).double().mean()) <= 0.99
    # Always guessing a fifth each is off by more than 0.5 on such clients.
    assert sum(off) / len(off) < 0.35


def test_noise_stands_in_by_default_and_says_so(federation):
    subject, client, _, _, _ = federation
    reader = ProportionReader.of(subject, client, 60, settings=ProportionSettings(runs=20))
    found = reader.read(client.share(subject.model, torch.randn(60, 8), torch.arange(60) % 5))
    assert "noise" in found.message
    assert float(found.mean.sum()) == pytest.approx(1)


def test_stand_ins_of_every_class_are_needed(federation):
    subject, client, public, _, _ = federation
    few = StandIns(public.images[:3], public.classes[:3])
    with pytest.raises(DataError, match="no image of class"):
        ProportionReader.of(subject, client, 60, few, SETTINGS)
    with pytest.raises(DataError):
        StandIns(public.images, public.classes[:3])
