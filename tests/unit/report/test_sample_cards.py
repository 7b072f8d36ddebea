from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from softleak.audit.report import SamplesFinding
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.present.page import sample_cards

PIXELS = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("searched", "caption"),
    [
        (None, "the input, proved"),
        (SimpleNamespace(leaked=True, method=SimpleNamespace(exact=True)), "the input, proved"),
        (
            SimpleNamespace(leaked=True, method=SimpleNamespace(exact=False)),
            "the input, a candidate",
        ),
        (
            SimpleNamespace(leaked=False, method=SimpleNamespace(exact=True)),
            "no success: the search ended here",
        ),
    ],
)
def test_a_picture_says_what_it_is_worth_beside_a_proved_label(searched, caption):
    label = torch.tensor([1.0, 0.0], dtype=torch.double)
    one = Recovery(Status.UNIQUE, label=label, reason="proved")
    found = BatchRecovery(Status.UNIQUE, "found", 1, (one,))
    (card,) = sample_cards(SamplesFinding(found, pictures=(PIXELS,), searched=searched), ())
    assert card["status"] == "UNIQUE"
    assert card["picture"] is not None
    assert card["caption"] == caption
    partly = SamplesFinding(replace(found, status=Status.AMBIGUOUS), pictures=(PIXELS,))
    assert sample_cards(partly, ())[0]["caption"] == "the input, not proved"
