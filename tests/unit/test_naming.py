from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ShareError
from softleak.io.weights import aligned, match
from softleak.paper import data, models


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
    with pytest.raises(ShareError, match="same parameters"):
        aligned(sl.GradientShare(twice), trained)


def test_foreign_names_are_left_alone(trained):
    foreign = sl.GradientShare({"something.else": torch.ones(2)})
    assert list(aligned(foreign, trained)) == ["something.else"]


def test_a_second_copy_and_strange_buffers_are_left_out_and_named(trained):
    state = trained.state_dict()
    held = {f"model.{n}": t for n, t in state.items()}
    held |= {f"model_ema.{n}": t for n, t in state.items()}
    held |= {"loss.weight": torch.ones(3)}
    names, remarks = match(held, trained)
    assert names == {f"model.{n}": n for n in state}
    assert remarks == (
        "a second copy of the weights, under 'model_ema.', was left out",
        "1 tensor not under 'model.' was left out",
    )


def test_a_wrapped_model_has_its_own_names(trained):
    wrapped = nn.Sequential()
    wrapped.add_module("inner", trained)
    state = trained.state_dict()
    assert match(state, wrapped)[0] == {n: f"inner.{n}" for n in state}


def test_what_compilation_puts_into_the_middle_of_names_is_ignored(trained):
    held = {
        n.replace("features.", "features._orig_mod."): t for n, t in trained.state_dict().items()
    }
    assert set(match(held, trained)[0].values()) == set(trained.state_dict())
