"""Models of Hugging Face, from small configurations: heads, labels, images and texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.inversion.results import Certainty

library: Any = pytest.importorskip("transformers")
library.logging.set_verbosity_error()

TEXT = {
    "vocab_size": 200, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "num_labels": 4,
}  # fmt: skip
IMAGE = {
    "image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "num_labels": 4,
}  # fmt: skip
LADDER = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_labels": 4}
TEXTS = {
    "Bert": TEXT,
    "Roberta": TEXT,
    "DistilBert": {
        "vocab_size": 200, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
        "max_position_embeddings": 40, "num_labels": 4,
    },
    "GPT2": {
        "vocab_size": 200, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 40,
        "num_labels": 4, "pad_token_id": 0,
    },
}  # fmt: skip
IMAGES = {
    "ViT": IMAGE,
    "DeiT": IMAGE,
    "Swin": {
        "image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
        "window_size": 4, "num_labels": 4,
    },
    "ConvNext": LADDER,
    "ResNet": {**LADDER, "embedding_size": 8, "layer_type": "basic"},
}  # fmt: skip
Y = torch.tensor([0.1, 0.2, 0.3, 0.4])


def classifier(family: str, settings: dict[str, Any], task: str) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(library, f"{family}Config")(**settings)
    model: nn.Module = getattr(library, f"{family}For{task}Classification")(config)
    return model.eval()


def words(length: int, seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 200, (length,), generator=torch.Generator().manual_seed(seed))
    ids[-1] = ids[0]  # a word that is repeated
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("family", TEXTS)
def test_texts_and_labels_of_sequence_classifiers(family: str) -> None:
    model = classifier(family, TEXTS[family], "Sequence")
    for length in (5, 30):
        x = words(length, length)
        share = sl.capture(model, x, Y)
        label = sl.recover_label(model, share)
        assert label.status is sl.Status.UNIQUE
        assert label.label is not None
        assert float((label.label - Y).abs().sum()) < 1e-5
        found = sl.invert(model, share, label)
        assert found.tokens == tuple(x["input_ids"].tolist())
        assert found.text is not None
        assert found.text.certain


@pytest.mark.parametrize("family", TEXTS)
def test_frozen_embeddings_of_sequence_classifiers(family: str) -> None:
    model = classifier(family, TEXTS[family], "Sequence")
    for name, parameter in model.named_parameters():
        if any(table in name for table in ("embeddings", "wte", "wpe")):
            parameter.requires_grad_(False)
    x = words(12, 3)
    share = sl.capture(model, x, Y)
    found = sl.invert(model, share, sl.recover_label(model, share)).text
    assert found is not None
    assert found.tokens == tuple(x["input_ids"].tolist())


@pytest.mark.parametrize("family", ["GPT2", "Bert"])  # read forwards, and in both directions
def test_the_texts_of_a_small_batch(family: str) -> None:
    model = classifier(family, {**TEXTS[family], "num_labels": 8}, "Sequence")
    for name, parameter in model.named_parameters():
        if any(table in name for table in ("embeddings", "wte", "wpe")):
            parameter.requires_grad_(False)
    ids = torch.stack([words(9, seed)["input_ids"] for seed in (1, 2)])
    ids[1, 6:] = 0  # the second text is shorter
    ids[0, 8] = ids[1, 5] = 3  # texts end alike, as with a separator
    x = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    share = sl.capture(model, x, torch.tensor([2, 5]))
    found = sl.invert(model, share, sl.recover_batch(model, share).samples)
    assert {text.tokens for text in found.texts} == {
        tuple(ids[0].tolist()), tuple(ids[1, :6].tolist())
    }  # fmt: skip
    assert all(text.explained for text in found.texts)
    assert not any(text.certain for text in found.texts)


@pytest.mark.parametrize("family", IMAGES)
def test_heads_and_labels_of_image_classifiers(family: str) -> None:
    model = classifier(family, IMAGES[family], "Image")
    size = 16 if family in ("ViT", "DeiT", "Swin") else 32
    x = torch.rand(3, size, size, generator=torch.Generator().manual_seed(0))
    for given in (x, {"pixel_values": x}):
        share = sl.capture(model, given, Y)
        assert share.input_shape == (3, size, size)
        label = sl.recover_label(model, share)
        assert label.status is sl.Status.UNIQUE
        assert label.label is not None
        assert float((label.label - Y).abs().sum()) < 1e-5


@pytest.mark.parametrize("family", ["ViT", "DeiT"])
def test_images_of_vision_transformers(family: str) -> None:
    model = classifier(family, IMAGE, "Image")
    x = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1))
    found = sl.invert(model, sl.capture(model, x, Y))
    assert found.determined
    assert float((found.input - x).square().mean()) < 1e-6


def test_a_model_of_windows_is_a_clear_statement() -> None:
    model = classifier("Swin", IMAGES["Swin"], "Image")
    share = sl.capture(model, torch.rand(3, 16, 16), Y)
    with pytest.raises(sl.SoftleakError):
        sl.invert(model, share, sl.recover_label(model, share))


def test_rotary_positions_tell_words_without_their_order() -> None:
    model = classifier("Llama", {**TEXT, "pad_token_id": 0}, "Sequence")
    x = words(10, 2)
    share = sl.capture(model, x, Y)
    found = sl.invert(model, share, sl.recover_label(model, share)).text
    assert found is not None
    assert found.words == tuple(sorted(set(x["input_ids"].tolist())))
    assert found.count(Certainty.CERTAIN) == 0
