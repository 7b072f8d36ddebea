"""Every kind of file people have, written by the library it comes from, audited by command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import softleak as sl
from tests.integration.audits import SHAPE, SMALL, WRAPPED, Small, audited, only, run

LABEL = torch.tensor([0.05, 0.05, 0.05, 0.65, 0.1, 0.05, 0.05], dtype=torch.double)
State = dict[str, Tensor]


def ema(state: State) -> State:
    return {name: tensor + 0.1 for name, tensor in state.items()}


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def optimiser(model: nn.Module) -> dict[str, object]:
    adam = torch.optim.Adam(model.parameters())
    model(torch.rand(1, 2, 6, 6)).sum().backward()
    adam.step = adam.step  # as a training script has it
    held = adam.state_dict()
    held["state"] = {0: {"exp_avg": torch.ones(3), "step": torch.tensor(1.0)}}
    return held


TORCH = {
    "model and optimizer": lambda m: {"model": m.state_dict(), "optimizer": optimiser(m)},
    "state_dict": lambda m: {"epoch": 3, "state_dict": m.state_dict()},
    "nested": lambda m: {"checkpoint": {"weights": {"state_dict": m.state_dict()}, "step": 4}},
    "beside a scalar": lambda m: {"model": m.state_dict(), "best_loss": torch.tensor(0.3)},
    "parts": lambda m: {
        "first": m.first.state_dict(),
        "hidden": m.hidden.state_dict(),
        "head": m.head.state_dict(),
    },
    "list": lambda m: [p.detach() for p in m.parameters()],
    "tuple": lambda m: tuple(p.detach() for p in m.parameters()),
    "module.": lambda m: prefixed(m.state_dict(), "module."),
    "module.model.": lambda m: prefixed(m.state_dict(), "module.model."),
    "any prefix": lambda m: prefixed(m.state_dict(), "learner.classifier_net."),
    "inner wrapper": lambda m: {
        name.replace(".", "._orig_mod.", 1): tensor for name, tensor in m.state_dict().items()
    },
    "ema apart": lambda m: {"model": m.state_dict(), "model_ema": ema(m.state_dict())},
    "ema beside": lambda m: {
        **prefixed(m.state_dict(), "model."),
        **prefixed(ema(m.state_dict()), "ema_model."),
    },
    "ema among": lambda m: {**m.state_dict(), **prefixed(ema(m.state_dict()), "ema.")},
}


@pytest.fixture
def small() -> Small:
    return Small().eval()


@pytest.fixture
def share(tmp_path, small) -> Path:
    path = tmp_path / "share.safetensors"
    sl.capture(small, torch.rand(2, 6, 6), LABEL).save(path)
    return path


def proved(out: Path, weights: Path, share: Path, model: str = SMALL) -> dict:
    answer = audited(
        out, "--model", model, "--weights", weights, "--share", share, "--labels-only", *SHAPE
    )
    label = only(answer)["label"]
    assert label["proved"] == "UNIQUE", label["message"]
    assert label["class_index"] == 3
    return answer


@pytest.mark.parametrize("kind", TORCH)
def test_checkpoints_as_training_scripts_save_them(tmp_path, small, share, kind):
    torch.save(TORCH[kind](small), tmp_path / "weights.pth")
    answer = proved(tmp_path / "out", tmp_path / "weights.pth", share)
    assert bool(answer["remarks"]) == kind.startswith("ema")


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt", ".safetensors"])
def test_every_ending(tmp_path, small, share, ending):
    path = tmp_path / f"weights{ending}"
    (save_file if ending == ".safetensors" else torch.save)(small.state_dict(), path)
    proved(tmp_path / "out", path, share)


def test_a_file_without_the_wrapper_the_model_has(tmp_path, small, share):
    torch.save(small.state_dict(), tmp_path / "weights.pt")
    proved(tmp_path / "out", tmp_path / "weights.pt", share, WRAPPED)
    torch.save(prefixed(small.state_dict(), "module.net."), tmp_path / "other.pt")
    proved(tmp_path / "out", tmp_path / "other.pt", share, WRAPPED)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights(tmp_path, small, dtype):
    small = small.to(dtype)
    torch.save(small.state_dict(), tmp_path / "half.pt")
    sl.capture(small.float(), torch.rand(2, 6, 6), LABEL).save(tmp_path / "share.pt")
    proved(tmp_path / "out", tmp_path / "half.pt", tmp_path / "share.pt")


def test_a_list_of_gradients_in_order_some_missing(tmp_path, small):
    small.first.requires_grad_(False)
    held = sl.capture(small, torch.rand(2, 6, 6), LABEL)
    grads = [held.get(name) for name, _ in small.named_parameters()]
    assert grads[0] is None
    torch.save(grads[2:], tmp_path / "trainable.pt")
    torch.save(small.state_dict(), tmp_path / "weights.pt")
    done = run(
        "--model", SMALL, "--weights", tmp_path / "weights.pt", "--share",
        tmp_path / "trainable.pt", "--labels-only", *SHAPE, "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 2  # the model as made has all parameters trainable: no guess is made
    assert "a list of 4 arrays" in done.output
    small.first.requires_grad_(True)
    every = list(sl.capture(small, torch.rand(2, 6, 6), LABEL).values())
    torch.save(every, tmp_path / "grads.pt")
    proved(tmp_path / "out", tmp_path / "weights.pt", tmp_path / "grads.pt")


def test_lightning(tmp_path, small, share):
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):
        def __init__(self, width: int = 24) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.network = small
            self.register_buffer("class_weights", torch.ones(7))

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0, momentum=0.9)

    trainer = lightning.Trainer(
        max_steps=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.rand(4, 2, 6, 6), torch.tensor([0, 1, 2, 3]))
    trainer.fit(Lit(), torch.utils.data.DataLoader(data, batch_size=2))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    proved(tmp_path / "out", tmp_path / "last.ckpt", share)


class Picture(nn.Module):
    """A small vision transformer of Hugging Face, behind a forward that returns logits."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.ViTConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
            image_size=16, patch_size=8, num_labels=7,
        )  # fmt: skip
        self.wrapped = transformers.ViTForImageClassification(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.wrapped(x).logits


def by_transformers(model: Picture, folder: Path, **options: str) -> None:
    model.wrapped.save_pretrained(folder, **options)


def by_hub(model: Picture, folder: Path, size: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    hub.save_torch_state_dict(
        model.wrapped.state_dict(), folder, safe_serialization=False, max_shard_size=size
    )


FOLDERS = {
    "safetensors": (by_transformers, {}, "model.safetensors"),
    "safetensors in shards": (
        by_transformers, {"max_shard_size": "20KB"}, "model.safetensors.index.json",
    ),
    "bin": (by_hub, {"size": "1GB"}, "pytorch_model.bin"),
    "bin in shards": (by_hub, {"size": "20KB"}, "pytorch_model.bin.index.json"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOLDERS)
def test_hugging_face_folders(tmp_path, kind):
    write, options, file = FOLDERS[kind]
    model, folder = Picture().eval(), tmp_path / "model"
    folder.mkdir()
    write(model, folder, **options)
    assert (folder / file).is_file()
    assert (len(list(folder.iterdir())) > 3) == ("shards" in kind)
    sl.capture(model, torch.rand(3, 16, 16), LABEL).save(tmp_path / "share.pt")
    for weights in (folder, folder / file):
        answer = audited(
            tmp_path / "out", "--model", f"{__name__}:Picture", "--weights", weights, "--share",
            tmp_path / "share.pt", "--labels-only", "--input-shape", "3,16,16",
        )  # fmt: skip
        assert only(answer)["label"]["class_index"] == 3
        assert len(answer["provenance"]["inputs"][0][1]) == 64


def index(folder: Path, listed: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": listed}))
    return folder


REFUSED = {
    "a path upwards": ({"head.weight": "../secret.safetensors"}, "own folder"),
    "an absolute path": ({"head.weight": "/etc/passwd"}, "own folder"),
    "a backslash": ({"head.weight": "..\\secret.safetensors"}, "own folder"),
    "dots": ({"head.weight": ".."}, "not a file of tensors"),
    "an index in an index": (
        {"head.weight": "model.safetensors.index.json"},
        "not a file of tensors",
    ),
    "a missing shard": ({"head.weight": "a.safetensors"}, "found none"),
    "no names": ({}, "no weight_map"),
    "a number": (3, "no weight_map"),
    "a shard without the tensor": ({"nowhere": "held.safetensors"}, "which it does not"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_index_that_lies_is_refused_in_a_line(tmp_path, small, share, case):
    listed, words = REFUSED[case]
    save_file(small.state_dict(), tmp_path / "secret.safetensors")
    folder = index(tmp_path / "model", listed)
    save_file(small.state_dict(), folder / "held.safetensors")
    refused(tmp_path, folder, share, words)


def test_an_index_of_a_stranger_is_checked_before_it_is_read(tmp_path, share):
    folder = index(tmp_path / "model", {})
    (folder / "model.safetensors.index.json").write_text("[" * 100_000)
    refused(tmp_path, folder, share, "not a readable index")


class Mine:
    """What only the author's own code can load."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": Mine()}, "save the state_dict alone"),
        ({"epoch": 3}, "no tensors"),
        ({"optimizer": {"state": {"exp_avg": torch.ones(3)}}}, "no tensors"),
        (3, "should hold a dict"),
        ([], "list of tensors"),
        ([torch.ones(2), "x"], "holds str"),
    ],
    ids=["object", "no tensors", "an optimiser's state", "number", "empty", "mixed"],
)
def test_what_holds_no_weights_is_refused_in_a_line(tmp_path, share, content, words):
    torch.save(content, tmp_path / "w.pt")
    refused(tmp_path, tmp_path / "w.pt", share, words)


def test_two_copies_that_nothing_tells_apart_are_refused(tmp_path, small, share):
    both = {**prefixed(small.state_dict(), "a."), **prefixed(ema(small.state_dict()), "b.")}
    torch.save(both, tmp_path / "w.pt")
    refused(tmp_path, tmp_path / "w.pt", share, "keep those of one prefix")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, share):
    (tmp_path / "empty").mkdir()
    refused(tmp_path, tmp_path / "empty", share, "name the file itself")


def refused(tmp_path: Path, weights: Path, share: Path, words: str) -> None:
    done = run(
        "--model", SMALL, "--weights", weights, "--share", share, "--labels-only", *SHAPE,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
