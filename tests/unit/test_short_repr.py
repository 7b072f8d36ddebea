"""Results show themselves in a few lines, and their notebook text is escaped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.results import BatchRecovery, Recovery, Status, label_in_words
from softleak.inversion.results import Inversion


def soft(weights: dict[int, float], classes: int = 10, floor: float = 0.0) -> torch.Tensor:
    label = torch.full((classes,), floor, dtype=torch.double)
    for one, weight in weights.items():
        label[one] = weight
    return label


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (soft({3: 0.91, 7: 0.09}), "class 3 (0.91), class 7 (0.09)"),
        (soft({3: 1.0}), "class 3 (1.00)"),
        (soft({3: 0.91}, floor=0.01), "class 3 (0.91), all others 0.09"),
        (soft({1: 0.25, 0: 0.75}, classes=2), "class 0 (0.75), class 1 (0.25)"),
        (soft({0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}), "class 0 (0.40), class 1 (0.30), class 2 (0.20), "
         "all others 0.10"),
        (soft({}, floor=0.1), "about 0.1 for each of 10 classes"),
    ],
)  # fmt: skip
def test_a_label_in_words(label, words):
    assert label_in_words(label) == words


def test_a_recovery_shows_status_label_error_and_message():
    found = Recovery(Status.UNIQUE, "one label fits", soft({3: 0.91, 7: 0.09}), error=2e-7)
    assert repr(found).splitlines() == [
        "Recovery: UNIQUE, class 3 (0.91), class 7 (0.09), error at most 2e-07",
        "  one label fits",
    ]
    assert str(Recovery(Status.ZERO_GRADIENT, "")) == "Recovery: ZERO_GRADIENT, no label"
    noisy = Recovery(Status.PROBABLE, "", soft({3: 1.0}), error=0.2, confidence=0.97)
    assert "class confident to 0.97" in repr(noisy)


def test_a_long_message_is_cut_off():
    shown = repr(Recovery(Status.REFUSED, "words " * 500)).splitlines()
    assert len(shown) == 4
    assert max(map(len, shown)) <= 96
    assert shown[-1].endswith("…")


def test_a_batch_shows_its_first_samples():
    sample = Recovery(Status.UNIQUE, "", soft({3: 1.0}), error=1e-6)
    shown = repr(BatchRecovery(Status.AMBIGUOUS, "some", 9, (sample,) * 6)).splitlines()
    assert shown[0] == "BatchRecovery: AMBIGUOUS, 6 of 9 samples found, 6 proved"
    assert shown[1] == "  - UNIQUE, class 3 (1.00), error at most 1e-06"
    assert shown[5:] == ["  - and 2 more", "  some"]


def test_a_share_shows_what_it_holds():
    model = nn.Linear(4, 3)
    shown = repr(sl.Client(lr=0.1, steps=2).share(model, torch.randn(4), 1)).splitlines()
    assert shown == [
        "GradientShare: 2 gradients, 15 numbers in float64, scale known",
        "  of an input (4,)",
        "  made by local training, steps=2,lr=0.1",
    ]
    assert repr(sl.GradientShare({})).endswith("0 numbers in no format, scale not stated")


def test_an_inversion_shows_its_predicted_error():
    x = torch.zeros(3, 4, 4)
    shown = repr(Inversion(x, x + 1e-3, (), torch.tensor(1.0), "from <patches>"))
    assert shown == (
        "Inversion: an input (3, 4, 4), determined, 60.0 dB predicted\n  from <patches>"
    )


def test_notebooks_get_the_same_text_escaped():
    found = Recovery(Status.NO_SOLUTION, "<script>alert(1)</script>")
    assert found._repr_html_() == (
        "<pre>Recovery: NO_SOLUTION, no label\n  &lt;script&gt;alert(1)&lt;/script&gt;</pre>"
    )
