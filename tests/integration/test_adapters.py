"""Updates of PEFT's adapters: folders as PEFT writes them, their names, and what fits nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import FileError, ModelError
from softleak.core.results import Status
from softleak.io.adapters import in_files, with_adapters
from softleak.io.weights import copy_weights, match

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
IDS, RATE = [5, 17, 42, 23, 9, 33], 0.05


def base() -> nn.Module:
    """Return a text classifier without adapters, the same each time."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=80, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, num_labels=4, max_position_embeddings=32,
    )  # fmt: skip
    model: nn.Module = transformers.BertForSequenceClassification(config).eval()
    return model


def adapted(**settings: object) -> nn.Module:
    """Return it with adapters of a rank of eight, as they are after some training."""
    config = peft.LoraConfig(
        r=8, lora_alpha=8, target_modules=["query", "value"], task_type="SEQ_CLS", **settings
    )
    model: nn.Module = peft.get_peft_model(base(), config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.02 * torch.randn(p.shape, generator=generator))
    return model


def step(model: nn.Module) -> None:
    """Take one step of plain SGD on one text."""
    loss = model(input_ids=torch.tensor([IDS]), labels=torch.tensor([2])).loss
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= RATE * p.grad


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of adapters before and after a step."""
    place, model = tmp_path_factory.mktemp("adapters"), adapted()
    model.save_pretrained(place / "before")
    step(model)
    model.save_pretrained(place / "after")
    return place / "before", place / "after"


@pytest.mark.parametrize("make", [base, adapted])  # with adapters, or made from the folder's file
def test_two_folders_tell_label_and_text(make, folders) -> None:
    before, after = folders
    report = sl.audit(make(), before=before, after=after, lr=RATE)
    assert report.label.recovery.status is Status.UNIQUE
    assert report.label.recovery.class_index == 2
    assert not report.remarks


def test_no_more_words_than_the_rank_are_read_for_certain() -> None:
    model = adapted()
    share = sl.capture(model, {"input_ids": torch.tensor([IDS])}, 2)
    text = sl.invert(model, share, sl.recover_label(model, share)).text
    assert text is not None
    assert text.tokens == tuple(IDS)
    assert text.certain


def test_a_share_of_two_folders_has_every_tensor_of_both(folders) -> None:
    share = sl.GradientShare.from_update(*folders, lr=RATE)
    trained = [n for n, p in adapted().named_parameters() if p.requires_grad]
    assert set(match(share, adapted())[0].values()) == set(trained)


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_every_name_in_a_file_has_its_place(settings, tmp_path) -> None:
    model = adapted(**settings)
    model.save_pretrained(tmp_path)
    other = adapted(**settings)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0 if p.requires_grad else 0.0)
    copy_weights(other, sl.io.load(tmp_path).tensors, "file")
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one, same) for one, same in pairs)


def test_a_tensor_that_fits_nothing_is_named(folders, tmp_path) -> None:
    before, after = folders
    held = dict(sl.io.load(after).tensors) | {"strange.thing": torch.ones(3)}
    torch.save(held, tmp_path / "adapter_model.bin")
    report = sl.audit(base(), before=before, after=tmp_path, lr=RATE)
    assert any("strange.thing" in line for line in report.remarks)
    with pytest.raises(ModelError, match=r"strange\.thing"):
        copy_weights(adapted(), held, "file")


def test_names_without_peft() -> None:
    assert in_files("a.query.lora_A.default.weight") == "a.query.lora_A.weight"
    assert in_files("a.score.modules_to_save.other.bias") == "a.score.bias"
    assert in_files("a.ia3_l.default") == "a.ia3_l"
    assert in_files("a.lora_A.weight") == "a.lora_A.weight"
    assert in_files("a.weight") == "a.weight"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"peft_type": "XLORA"}', '{"peft_type": "LORA", "r": [[1]]}']
)
def test_a_strange_description_is_refused(content, tmp_path) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(FileError):
        with_adapters(base(), tmp_path)


def test_a_description_cannot_name_code_or_files(tmp_path) -> None:
    said = {"peft_type": "LORA", "r": 4, "target_modules": ["query"], "auto_mapping": {"x": "y"},
            "base_model_name_or_path": "http://nowhere", "init_lora_weights": "pissa"}  # fmt: skip
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    model = with_adapters(base(), tmp_path)
    config = model.peft_config["default"]  # type: ignore[union-attr, index, operator]
    assert config.base_model_name_or_path != "http://nowhere"
    assert config.init_lora_weights is True
