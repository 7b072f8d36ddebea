from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from softleak.core.errors import FileError, ModelError
from softleak.io.weights import copy_state
from softleak.paper.data import IMAGENET_NORM, ImageSet, load
from softleak.paper.models import MODELS, lenet, load_weights, mlp, resnet20

State = dict[str, Tensor]


def write_npz(state: State, path: Path) -> None:
    np.savez(path, **{key: value.numpy() for key, value in state.items()})


WRITERS: dict[str, Callable[[State, Path], None]] = {
    ".safetensors": lambda state, path: save_file(state, path),
    ".pt": lambda state, path: torch.save(state, path),
    ".pth": lambda state, path: torch.save(state, path),
    ".npz": write_npz,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_round_trip(suffix: str, tmp_path: Path) -> None:
    source, target = resnet20(), resnet20()
    source.bn1.running_mean.uniform_()
    WRITERS[suffix](source.state_dict(), tmp_path / f"w{suffix}")
    assert load_weights(target, tmp_path / f"w{suffix}") is target
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value)


def test_every_mismatch_is_named_at_once(tmp_path: Path) -> None:
    state = mlp(6, (5,), 3).state_dict()
    state["stray"] = torch.zeros(2)
    del state["features.0.bias"]
    state["classifier.weight"] = torch.zeros(4, 5)
    save_file(state, tmp_path / "w.safetensors")
    model = mlp(6, (5,), 3)
    before = model.features[0].weight.clone()
    with pytest.raises(ModelError) as caught:
        load_weights(model, tmp_path / "w.safetensors")
    text = str(caught.value)
    assert "missing: features.0.bias (5,)" in text
    assert "unexpected: stray (2,)" in text
    assert "wrong shape: classifier.weight is (4, 5), the model has (3, 5)" in text
    assert torch.equal(model.features[0].weight, before)


def test_of_many_mismatches_five_are_named_and_the_others_counted() -> None:
    state = {f"stray.{i}": torch.zeros(2) for i in range(100)}
    with pytest.raises(ModelError) as caught:
        copy_state(mlp(6, (5,), 3), state, "w.pt")
    lines = str(caught.value).splitlines()
    assert len(lines) == 7
    assert lines[1:3] == ["  missing: features.0.weight (5, 6)", "  unexpected: stray.0 (2,)"]
    assert lines[-1] == "  and 98 more"


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x80\x02nonsense"])
def test_damaged_files_are_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"w{suffix}"
    file.write_bytes(content)
    with pytest.raises(FileError, match="not a readable"):
        load_weights(lenet(), file)


@pytest.mark.parametrize("suffix", WRITERS)
def test_truncated_files_are_refused(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"w{suffix}"
    WRITERS[suffix](lenet().state_dict(), file)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(FileError, match="not a readable"):
        load_weights(lenet(), file)


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harmed",)


def test_pickled_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"features.0.weight": Harmful()}, "w.pt")
    np.savez("w.npz", **{"features.0.weight": np.array([Harmful()], dtype=object)})
    for name in ("w.pt", "w.npz"):
        with pytest.raises(FileError):
            load_weights(lenet(), name)
    assert not Path("harmed").exists()


def test_a_whole_checkpoint_is_unwrapped(tmp_path: Path) -> None:
    source, target = lenet(), lenet()
    torch.save({"epoch": 3, "state_dict": source.state_dict()}, tmp_path / "w.pt")
    load_weights(target, tmp_path / "w.pt")
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value)


def test_other_suffixes_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "w.h5").write_bytes(b"x")
    with pytest.raises(FileError, match=r"\.safetensors"):
        load_weights(lenet(), tmp_path / "w.h5")
    with pytest.raises(FileError, match="expected a file"):
        load_weights(lenet(), tmp_path / "w.pt")


@pytest.fixture(scope="module")
def cifar10(packs: Path) -> ImageSet:
    return load(packs / "cifar10_test.npz").subset(range(300))


# As measured on all 10,000 test images; three standard errors of 300 images are 0.048.
@pytest.mark.parametrize(
    ("name", "stated"), [("resnet20", 0.9173), ("resnet32", 0.9263), ("resnet56", 0.9339)]
)
def test_published_cifar_resnets(name: str, stated: float, packs: Path, cifar10: ImageSet) -> None:
    model = load_weights(MODELS[name](), packs / f"cifar10_{name}.npz").eval()
    x = IMAGENET_NORM.apply(cifar10.images.permute(0, 3, 1, 2).float() / 255)
    with torch.no_grad():
        right = (model(x).argmax(1) == cifar10.labels).double().mean().item()
    assert right == pytest.approx(stated, abs=0.048)
