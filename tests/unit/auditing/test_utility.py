from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.audit.sweeps import Utility, loss_fall, mean_utility, utility
from softleak.core.loss import CROSS_ENTROPY
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.paper import models
from softleak.present.words import utility_words

TRUE = GradientShare({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])})


@pytest.mark.parametrize(
    ("sent", "cosine", "length", "progress"),
    [
        (TRUE, 1.0, 1.0, 1.0),
        (TRUE.scaled(0.5), 1.0, 0.5, 0.5),
        (TRUE.scaled(2.0), 1.0, 2.0, 1.0),
        (TRUE.scaled(-1.0), -1.0, 1.0, -1.0),
        (TRUE.without("b"), 0.6, 0.6, 0.36),
        (GradientShare({}), 0.0, 0.0, 0.0),
    ],
)
def test_cosine_length_and_progress(sent, cosine, length, progress):
    found = utility(TRUE, sent)
    assert found.cosine == pytest.approx(cosine)
    assert found.length == pytest.approx(length)
    assert found.progress == pytest.approx(progress)
    assert found.loss is None


def test_the_mean_has_the_loss_of_those_that_are_known():
    found = mean_utility([Utility(1.0, 1.0, 0.5), Utility(0.0, 3.0)])
    assert (found.cosine, found.length, found.loss) == (0.5, 2.0, 0.5)
    assert utility_words(found) == "cosine 0.50, 50% of the fall in loss"


def test_the_loss_after_a_step_is_compared_with_that_after_the_true_one():
    torch.manual_seed(0)
    model, x = models.mlp(12, (8,), classes=3).eval(), torch.rand(3, 2, 2)
    y = torch.tensor([0.0, 1.0, 0.0])
    share = sl.capture(model, x, y)
    before = {n: p.clone() for n, p in model.named_parameters()}
    falls = loss_fall(Subject.of(model, (3, 2, 2)), share, x, y, CROSS_ENTROPY)
    assert falls(share) == pytest.approx(1.0)
    assert falls(share.scaled(-1)) < 0
    assert 0 < falls(share.scaled(0.5)) < 1
    assert falls(GradientShare({})) == 0.0
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_an_update_that_lowers_no_loss_has_none_to_compare():
    model, x = models.mlp(12, (8,), classes=3).eval(), torch.rand(3, 2, 2)
    share = sl.capture(model, x, 1).scaled(-1)
    y = torch.tensor([0.0, 1.0, 0.0])
    assert loss_fall(Subject.of(model, (3, 2, 2)), share, x, y, CROSS_ENTROPY) is None
