"""No claim is wrong at seeds at which one was; the module of the adversary runs many more."""

from __future__ import annotations

import pytest

from tests.properties import claims_adversary as adversary


@pytest.mark.parametrize(
    ("part", "first", "tries"),
    [
        ("classes", 60, 12),
        ("classes", 1072, 12),
        ("classes", 2408, 6),
        ("classes", 40012, 6),
        ("training", 740, 20),
    ],
)
def test_no_claim_is_wrong(part, first, tries):
    run, _ = adversary.PARTS[part]
    found = run(range(first, first + tries))
    assert sum(n for what, n in found.items() if what.endswith("tried")) == tries
    assert sum(n for what, n in found.items() if what.endswith("claimed"))
    assert not sum(n for what, n in found.items() if what.endswith("wrong"))


def test_a_flat_label_of_a_batch_is_not_proved_at_a_scale_that_nobody_stated():
    found = adversary.batches(range(40120, 40121))
    assert found["batches: tried"] == 1
    assert not found["batches: wrong"]
