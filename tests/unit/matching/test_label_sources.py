import pytest
import torch

import softleak as sl
from softleak.core.errors import LabelError
from softleak.core.head import find_head
from softleak.matching.tasks import GivenLabel, HardLabel, RandomLabel, RecoveredLabel
from softleak.paper import data


@pytest.fixture
def seen(trained, draw):
    def make(augmentation, count=1):
        found = []
        for sample in draw(augmentation, count):
            share = sl.capture(trained, sample.x, sample.y)
            recovery = sl.recover_label(trained, share)
            found.append(((find_head(trained), share, recovery), sample.y))
        return found

    return make


def test_the_recovered_label_is_kept_or_is_where_a_free_one_begins(seen):
    ((view, y),) = seen(data.Mixup())
    kept, free = RecoveredLabel().start(*view), RecoveredLabel(free=True).start(*view)
    assert (kept.free, free.free) == (False, True)
    assert torch.allclose(kept.value, y, atol=1e-4)
    assert torch.allclose(free.value.softmax(0), y, atol=1e-4)


def test_idlg_reads_the_class_off_the_gradient(seen):
    for view, y in seen(data.Hard(), 10):
        assert int(HardLabel().start(*view).value.argmax()) == int(y.argmax())


def test_a_random_label_depends_on_the_seed_alone(seen):
    (first, _), (second, _) = seen(data.Smoothing(), 2)
    logits = [RandomLabel(seed).start(*view).value for view in (first, second) for seed in (0, 1)]
    assert torch.equal(logits[0], logits[2])
    assert not torch.equal(logits[0], logits[1])


def test_a_given_label_must_fit(seen):
    ((view, y),) = seen(data.Smoothing())
    assert torch.equal(GivenLabel(y).start(*view).value, y)
    with pytest.raises(LabelError, match="10 entries"):
        GivenLabel(y[:3]).start(*view)
