from __future__ import annotations

import numpy as np
import pytest
import torch

import softleak as sl
from softleak import data, models
from softleak.errors import ShareError
from softleak.naming import aligned


@pytest.fixture
def share(shares):
    (one,), _ = shares(data.Hard(), 1)
    return one


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model.net."])
def test_prefixes_of_wrappers_come_off(trained, share, prefix):
    wrapped = share.renamed({name: prefix + name for name in share})
    assert set(aligned(wrapped, trained)) == set(share)


def test_a_list_of_arrays_in_order(tmp_path, trained, share):
    """As Flower sends them: ndarrays without names, saved by numpy as arr_0, arr_1, …"""
    names = [name for name, _ in trained.named_parameters()]
    np.savez(tmp_path / "flower.npz", *[share[name].numpy() for name in names])
    back = aligned(sl.GradientShare.load(tmp_path / "flower.npz"), trained)
    assert set(back) == set(names)
    assert all(torch.equal(back[name], share[name]) for name in names)


def test_a_whole_state_in_order_counters_included(tmp_path):
    """Flower's usual list is the state dict: BatchNorm's statistics and counters are in it."""
    model = models.resnet20()
    state = model.state_dict()
    assert len(state) > 10  # arr_10 must not sort before arr_2
    np.savez(tmp_path / "state.npz", *[tensor.numpy() for tensor in state.values()])
    back = aligned(sl.GradientShare.load(tmp_path / "state.npz"), model)
    assert torch.equal(back["linear.weight"], state["linear.weight"])
    other = models.resnet20()
    models.load_weights(other, tmp_path / "state.npz")
    assert torch.equal(other.linear.weight, model.linear.weight)


def test_lists_that_do_not_fit_are_refused(trained, share):
    arrays = sl.GradientShare({f"arr_{i}": g for i, g in enumerate(list(share.values())[:3])})
    with pytest.raises(ShareError, match="3 arrays without names"):
        aligned(arrays, trained)


def test_names_that_collide_are_refused(trained, share):
    twice = {f"module.{n}": g for n, g in share.items()}
    twice |= {f"model.{n}": g for n, g in share.items()}
    with pytest.raises(ShareError, match="one name"):
        aligned(sl.GradientShare(twice), trained)


def test_foreign_names_are_left_alone(trained):
    foreign = sl.GradientShare({"something.else": torch.ones(2)})
    assert list(aligned(foreign, trained)) == ["something.else"]
