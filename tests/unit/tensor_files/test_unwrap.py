from __future__ import annotations

import pytest
import torch

from softleak.core.errors import FileError
from softleak.io.formats import unwrap
from softleak.io.weights import is_averaged

ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"a": ONE, "b": TWO}, {"a", "b"}),
        ({"state_dict": {"a": ONE}, "epoch": 3}, {"a"}),
        ({"model": {"a": ONE}, "optimizer": {"state": {"a": TWO}}}, {"a"}),
        ({"checkpoint": {"model": {"a": ONE}, "hparams": {"b": TWO}}}, {"a"}),
        ({"encoder": {"a": ONE}, "head": {"b": TWO}}, {"encoder.a", "head.b"}),
        ({"model": {"encoder": {"a": ONE}, "head": {"b": TWO}}}, {"encoder.a", "head.b"}),
        ([ONE, None, TWO], {"arr_0", "arr_1"}),
        ({"gradients": [ONE, TWO]}, {"arr_0", "arr_1"}),
    ],
)
def test_tensors_are_found_in_what_training_scripts_save(content, names):
    tensors, remarks = unwrap(content)
    assert tensors.keys() == names
    assert remarks == ()


def test_plain_weights_are_preferred_to_averaged_ones_and_it_is_said():
    tensors, (remark,) = unwrap({"model": {"a": ONE}, "model_ema": {"a": TWO}})
    assert torch.equal(tensors["a"], ONE)
    assert "model_ema" in remark
    tensors, (remark,) = unwrap({"ema": {"a": TWO}})
    assert torch.equal(tensors["a"], TWO)
    assert "averaged weights only" in remark


@pytest.mark.parametrize("content", [3, "text", {}, {"a": 1}, [], [ONE, "b"], [None]])
def test_what_holds_no_tensors_is_refused(content):
    with pytest.raises(FileError, match=r"it (should hold|holds no)"):
        unwrap(content)


def test_dicts_nested_without_end_are_refused():
    content: dict[str, object] = {"a": ONE}
    for _ in range(20):
        content = {"inner": content}
    with pytest.raises(FileError, match="no tensors"):
        unwrap(content)


@pytest.mark.parametrize(
    ("prefix", "averaged"),
    [("ema.", True), ("model_ema.", True), ("swa_model", True), ("schema", False), ("", False)],
)
def test_an_average_is_known_by_its_name(prefix, averaged):
    assert is_averaged(prefix) is averaged
