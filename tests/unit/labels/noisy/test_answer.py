from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import softleak as sl
from softleak.labels.noisy.posterior import Points, Posterior
from softleak.labels.noisy.recover import Draws, answer, fits
from softleak.labels.noisy.spectrum import Spectrum

from .one_sample import OneSample, smoothed

CLASSES = 6
CASE = OneSample.of(smoothed(2, 0.8))
SPECTRUM = Spectrum(0.01, 1, True, False, True)
GIVEN = Posterior(
    CASE.signal(0.01, 0), CASE.head.b, sl.Smoothed().simplices(CLASSES, range(CLASSES)), False,
    CASE.typical,
)  # fmt: skip


def two_classes(first: float) -> Draws:
    """Labels of class 2 with this probability, and of class 4 else."""
    labels = torch.stack([smoothed(2, 0.8), smoothed(4, 0.6)])
    t = torch.tensor([0.7, 0.5], dtype=torch.double)
    weight = torch.tensor([first, 1 - first], dtype=torch.double)
    return Draws(labels, t, t, weight, torch.zeros(2, dtype=torch.bool))


@pytest.mark.parametrize(("first", "status"), [(0.95, "PROBABLE"), (0.8, "GUESS")])
def test_confidence_is_the_probability_of_the_leading_class(first, status):
    found = answer(GIVEN, two_classes(first), SPECTRUM)
    assert found.status.name == status
    assert found.class_index == 2
    assert found.confidence == pytest.approx(first)
    assert torch.allclose(found.label, smoothed(2, 0.8))
    assert found.scalar == pytest.approx(0.7)
    assert torch.allclose(found.feature, GIVEN.signal.x / 0.7)


def test_the_error_reaches_labels_of_other_classes_if_they_are_likely():
    far = float((smoothed(2, 0.8) - smoothed(4, 0.6)).abs().sum())
    assert answer(GIVEN, two_classes(0.8), SPECTRUM).error == pytest.approx(far)
    assert answer(GIVEN, two_classes(0.95), SPECTRUM).error == pytest.approx(0, abs=1e-12)


def test_noise_of_another_kind_leaves_no_calibrated_figure():
    found = answer(GIVEN, two_classes(0.99), replace(SPECTRUM, even=False))
    assert found.status is sl.Status.GUESS
    assert found.confidence is None
    assert found.interval is None
    assert found.error == math.inf


@pytest.mark.parametrize(("misfit", "fit"), [(3.0, True), (20.0, True), (60.0, False)])
def test_a_family_fits_unless_its_misfit_is_improbable(misfit, fit):
    # Three degrees of freedom: six classes, less two, less one weight. P(χ² > 30.7) = 1e-6.
    one = torch.ones(1, 1, 1, dtype=torch.double)
    points = Points(one, one[..., None], one, torch.full((1, 1), misfit).double(), 0 * one)
    assert fits(GIVEN, points) is fit


@pytest.mark.parametrize(("inside", "fit"), [(4.0, True), (25.0, True), (60.0, False)])
def test_a_family_without_equations_to_spare_fits_if_its_label_is_within_noise(inside, fit):
    # Four degrees of freedom: six classes, less two. P(χ² > 33.4) = 1e-6.
    one = torch.ones(1, 1, 1, dtype=torch.double)
    weights = one[..., None].expand(1, 1, 1, CLASSES - 1)
    points = Points(one, weights, one, torch.zeros(1, 1).double(), inside * one)
    assert fits(GIVEN, points) is fit


def test_nothing_fits_where_no_label_has_weight():
    none = torch.full((1, 1, 1), -math.inf, dtype=torch.double)
    assert not fits(GIVEN, Points(none, none[..., None], none, torch.zeros(1, 1), none))
