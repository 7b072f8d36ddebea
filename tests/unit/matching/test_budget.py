import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError
from softleak.matching import LBFGS, Adam
from softleak.matching.problems import DifferentiableModel, count_activations
from softleak.matching.reconstruct import MOST_PROBLEMS, batch_size, entries


@pytest.fixture
def own():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 5))
    return DifferentiableModel.of(model, sl.Head.of(model), torch.float32)


def test_activations_are_the_outputs_of_all_layers(own):
    assert count_activations(own, torch.zeros(1, 1, 6, 6)) == 48 + 48 + 48 + 5
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in own.model.modules())


def test_the_entries_of_a_problem_add_up(own):
    weights, unknowns = 3 * 9 + 3 + 48 * 5 + 5, 36 + 5
    expected = 12 * 149 + 6 * weights + Adam().vectors * unknowns
    assert entries(own, (1, 6, 6), Adam()) == expected
    assert LBFGS().vectors > LBFGS(history=5).vectors > Adam().vectors


@pytest.mark.parametrize("count", [1, 2, 17])
def test_as_many_problems_as_fit_are_run_at_once(own, count):
    each = 4 * entries(own, (1, 6, 6), Adam())
    assert batch_size(own, (1, 6, 6), Adam(), count * each) == count
    assert batch_size(own, (1, 6, 6), Adam(), (count + 1) * each - 1) == count


def test_there_is_at_least_one_problem_and_a_largest_batch(own):
    assert batch_size(own, (1, 6, 6), Adam(), 0) == 1
    assert batch_size(own, (1, 6, 6), Adam(), 1 << 40) == MOST_PROBLEMS


def test_a_shape_the_model_does_not_take_is_said_and_leaves_no_hook(own):
    with pytest.raises(ModelError, match=r"shape \(1, 9, 9\)"):
        batch_size(own, (1, 9, 9), Adam(), 1 << 30)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in own.model.modules())
