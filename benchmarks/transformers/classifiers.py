"""The classifiers that are measured: Hugging Face's, small, from their configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import MissingExtra
from softleak.core.forward import forward_batch
from softleak.paper import data, models

TRAINING_STEPS = 40


def library() -> Any:  # noqa: ANN401 - the library is looked up by names
    """Return transformers, quiet."""
    try:
        found = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtra("this needs transformers: pip install 'softleak[text]'") from error
    found.logging.set_verbosity_error()
    return found


@dataclass(frozen=True)
class ImageModel:
    """A vision transformer, the size of its images, and the number format of its client."""

    name: str
    make: Callable[[int], nn.Module]  # of the number of classes
    size: int
    dtype: torch.dtype = torch.float32


def _vision(family: str, size: int, patch: int, width: int, layers: int) -> ImageModel:
    def make(classes: int) -> nn.Module:
        config = getattr(library(), f"{family}Config")(
            image_size=size, patch_size=patch, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=width // 32, intermediate_size=2 * width, num_labels=classes,
        )  # fmt: skip
        made: nn.Module = getattr(library(), f"{family}ForImageClassification")(config)
        return made

    return ImageModel(f"{family} {size}/{patch}, width {width}", make, size)


IMAGE_MODELS = (
    ImageModel("softleak's ViT 32/4, width 96", models.vit, 32),
    _vision("ViT", 32, 4, 192, 6),
    _vision("DeiT", 32, 4, 192, 6),
    _vision("ViT", 224, 16, 768, 3),
    _vision("DeiT", 224, 16, 768, 3),
)
DOUBLE_MODEL = replace(IMAGE_MODELS[-1], dtype=torch.float64)
NARROW_MODEL = _vision("DeiT", 224, 16, 192, 4)  # 196 patches: more than the width


def train_images(model: nn.Module, images: data.ImageSet, size: int) -> None:
    """Train a little on images of this size."""
    resized = None if images.images.shape[1] == size else size
    drawn = data.samples(images, data.Hard(), 8 * TRAINING_STEPS, 5, data.CIFAR10_NORM, resized)
    batches = list(drawn)
    _train(
        model,
        [
            (torch.stack([s.x for s in batches[i : i + 8]]),
             torch.stack([s.y for s in batches[i : i + 8]]).float())
            for i in range(0, len(batches), 8)
        ],
    )  # fmt: skip


def train_texts(model: nn.Module, sentences: list[list[int]], classes: int) -> None:
    """Train a little on sentences, one at a time, to tell their first letters apart."""
    batches = [
        ({"input_ids": torch.tensor([ids])}, torch.tensor([ids[1] % classes]))
        for ids in sentences[: 4 * TRAINING_STEPS]
    ]
    _train(model, batches)


def _train(model: nn.Module, batches: list[tuple[Any, Tensor]]) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-4)
    for x, y in batches:
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(forward_batch(model, x), y))
        optimiser.step()
    optimiser.zero_grad()


@dataclass(frozen=True)
class TextModel:
    """A text classifier: its family, the names its settings go by, and its kind of tokens."""

    family: str
    names: Mapping[str, str]
    pieces: bool  # WordPiece with [CLS] and [SEP]; else byte pairs

    def make(self, classes: int, words: int) -> nn.Module:
        """Return the classifier with this many classes and words, width 128 and 4 layers."""
        settings = {self.names[k]: v for k, v in WIDTHS.items()}
        config = getattr(library(), f"{self.family}Config")(
            vocab_size=words, num_labels=classes, pad_token_id=0 if self.pieces else 1, **settings
        )
        made: nn.Module = getattr(library(), f"{self.family}ForSequenceClassification")(config)
        return made


WIDTHS = {"width": 128, "layers": 4, "heads": 4, "inner": 256, "places": 160}
USUAL = {
    "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "inner": "intermediate_size", "places": "max_position_embeddings",
}  # fmt: skip
TEXT_MODELS = (
    TextModel("Bert", USUAL, True),
    TextModel("Roberta", USUAL, False),
    TextModel("DistilBert", {
        "width": "dim", "layers": "n_layers", "heads": "n_heads", "inner": "hidden_dim",
        "places": "max_position_embeddings",
    }, True),
    TextModel("GPT2", {
        "width": "n_embd", "layers": "n_layer", "heads": "n_head", "inner": "n_inner",
        "places": "n_positions",
    }, False),
)  # fmt: skip
