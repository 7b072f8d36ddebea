from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import softleak as sl
from softleak.core.errors import FileError, NonFinite, ShareError
from softleak.paper import data

ENDINGS = (".safetensors", ".pt", ".npz")


def example() -> sl.GradientShare:
    gradients = {"a.weight": torch.randn(3, 2), "a.bias": torch.randn(3, dtype=torch.float64)}
    return sl.GradientShare(gradients, (3, 32, 32), {"a.bias": 1e-9})


@pytest.mark.parametrize("ending", ENDINGS)
def test_round_trip(tmp_path, ending):
    share, path = example(), tmp_path / f"update{ending}"
    share.save(path)
    back = sl.GradientShare.load(path)
    assert set(back) == set(share)
    for name in share:
        assert back[name].dtype == share[name].dtype
        assert torch.equal(back[name], share[name])
    assert back.input_shape == share.input_shape
    assert dict(back.rounding) == dict(share.rounding)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing temporary is left


def test_the_norm_is_that_of_all_gradients_together():
    share = sl.GradientShare({"a": torch.tensor([[3.0]]), "b": torch.tensor([2.0, 6.0]).half()})
    assert share.norm() == 7.0
    assert share.without("a", "b").norm() == 0.0


def test_a_plain_state_dict_is_read(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "x.pt")
    assert torch.equal(sl.GradientShare.load(tmp_path / "x.pt")["w"], torch.ones(2))


class Explosive:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize("ending", ENDINGS)
def test_hostile_files_are_refused_and_not_executed(tmp_path, ending):
    path = tmp_path / f"evil{ending}"
    path.write_bytes(pickle.dumps({"w": Explosive()}))
    with pytest.raises(FileError, match="not a readable"):
        sl.GradientShare.load(path)


def test_counters_beside_the_gradients_are_left_out(tmp_path):
    torch.save({"w": torch.ones(2), "bn.num_batches_tracked": torch.tensor(3)}, tmp_path / "x.pt")
    assert list(sl.GradientShare.load(tmp_path / "x.pt")) == ["w"]


def test_half_precision_round_trip(tmp_path):
    share = sl.GradientShare({"w": torch.ones(2, dtype=torch.bfloat16)})
    share.save(tmp_path / "x.safetensors")
    assert sl.GradientShare.load(tmp_path / "x.safetensors")["w"].dtype == torch.bfloat16
    with pytest.raises(FileError, match="bfloat16"):
        share.save(tmp_path / "x.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_compressed_files_that_break_off_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", w=np.random.default_rng(0).normal(size=5000))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[2000:2100] = bytes(100)
    (tmp_path / "x.npz").write_bytes(bytes(content))
    with pytest.raises(FileError, match="not a readable"):
        sl.GradientShare.load(tmp_path / "x.npz")


def test_object_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "evil.npz", w=np.array([Explosive()], dtype=object), allow_pickle=True)
    with pytest.raises(FileError):
        sl.GradientShare.load(tmp_path / "evil.npz")


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=25, deadline=None)
@given(keep=st.floats(0, 0.999), flip=st.integers(0, 10_000))
def test_damaged_files_give_one_clear_error_or_tensors(tmp_path_factory, ending, keep, flip):
    path = tmp_path_factory.mktemp("damaged") / f"update{ending}"
    example().save(path)
    content = bytearray(path.read_bytes())
    content[flip % len(content)] ^= 0xFF
    path.write_bytes(bytes(content[: int(keep * len(content))] if flip % 2 else content))
    try:
        share = sl.GradientShare.load(path)
    except (FileError, ShareError):
        return
    assert all(isinstance(g, torch.Tensor) for g in share.values())


@pytest.mark.parametrize("name", ["missing.pt", "update.bin", "update"])
def test_missing_and_unknown_files(tmp_path, name):
    with pytest.raises(FileError, match="expected a file"):
        sl.GradientShare.load(tmp_path / name)


def test_from_update_is_the_gradient(tmp_path, trained, shares):
    (share,), _ = shares(data.Smoothing(), 1)
    before = {name: p.detach().clone() for name, p in trained.named_parameters()}
    after = {name: p - 0.1 * share[name] for name, p in before.items()}
    update = sl.GradientShare.from_update(before, after, lr=0.1)
    for name in share:
        assert (update[name] - share[name]).abs().max() <= 2 * update.rounding[name]
    sl.GradientShare(before).save(tmp_path / "a.safetensors")
    sl.GradientShare(after).save(tmp_path / "b.pt")
    again = sl.GradientShare.from_update(tmp_path / "a.safetensors", tmp_path / "b.pt", lr=0.1)
    assert torch.equal(again["classifier.weight"], update["classifier.weight"])


def test_from_update_mistakes_are_named():
    with pytest.raises(
        ShareError, match=r"no parameter name in common: one holds a …, the other b"
    ):
        sl.GradientShare.from_update({"a": torch.ones(1)}, {"b": torch.ones(1)}, lr=0.1)
    with pytest.raises(ShareError, match="differ in shape"):
        sl.GradientShare.from_update({"a": torch.ones(1)}, {"a": torch.ones(2)}, lr=0.1)
    with pytest.raises(ShareError, match="learning rate"):
        sl.GradientShare.from_update({"a": torch.ones(1)}, {"a": torch.ones(1)}, lr=0)


def test_only_float_tensors_are_gradients():
    with pytest.raises(ShareError, match="floating-point"):
        sl.GradientShare({"count": torch.tensor(3)})
    with pytest.raises(ShareError, match="floating-point"):
        sl.GradientShare({"w": [1.0]})  # type: ignore[dict-item]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_gradients_are_named(bad):
    with pytest.raises(NonFinite, match=r"a\.weight"):
        sl.GradientShare({"a.weight": torch.tensor([1.0, bad])}).check_finite()


def test_an_overflowing_sum_is_not_called_infinite():
    sl.GradientShare({"w": torch.full((4,), 3e38)}).check_finite()


def test_the_largest_entry_is_absolute_and_shows_what_is_not_finite():
    held = {"a": torch.tensor([1.0, -3.0]), "b": torch.tensor([1.0, float("nan"), 2.0]),
            "c": torch.tensor([-float("inf"), 0.0]), "d": torch.zeros(0)}  # fmt: skip
    share = sl.GradientShare(held)
    assert [share.largest(name) for name in "acd"] == [3.0, float("inf"), 0.0]
    assert math.isnan(share.largest("b"))


def test_noise_has_a_size():
    share = sl.GradientShare({"a": torch.ones(2)})
    assert share.expecting(0.5).noise("a") == 0.5
    with pytest.raises(ShareError, match="0 or more, got -1"):
        share.expecting(-1)
