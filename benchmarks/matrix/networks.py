"""The models: sixteen strangers in four groups, small enough for about a second per update."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from benchmarks.adversary.stranger import Stranger
from benchmarks.adversary.zoo.hugging_face import HUGGING_FACE
from benchmarks.adversary.zoo.sequences import SEQUENCES

CLASSES = 10
RECORD, PICTURE, SENTENCE = (20,), (3, 16, 16), (8,)
TABLES, CONVOLUTIONS = "Tables", "Convolutions"
STRANGERS, SEQUENTIAL = "Image models of Hugging Face", "Sequences"


@dataclass(frozen=True)
class Reader(Stranger):
    """A model that reads sentences.

    Attributes:
        words: the number of rows of its table; row 0 is padding.
        keyword: the argument that the auditor passes token ids as; empty if they have none.
    """

    words: int = 200
    keyword: str = "input_ids"


def perceptron(activation: type[nn.Module], bias: bool = True) -> nn.Module:
    """Return an MLP for records."""
    return nn.Sequential(
        nn.Linear(20, 64), activation(), nn.Linear(64, 32), activation(),
        nn.Linear(32, CLASSES, bias=bias),
    )  # fmt: skip


def normalised() -> nn.Module:
    """Return an MLP for records with dropout and a LayerNorm before its head."""
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.GELU(),
        nn.LayerNorm(32), nn.Linear(32, CLASSES),
    )  # fmt: skip


def pooled(activation: type[nn.Module], bias: bool = True) -> nn.Module:
    """Return convolutions with max-pooling right before the head."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 1, 1), activation(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, 1, 1), activation(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(64, CLASSES, bias=bias),
    )  # fmt: skip


def smooth() -> nn.Module:
    """Return convolutions with strides and tanh, a chain that can be inverted."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2), nn.Tanh(), nn.Conv2d(12, 12, 5, 2, 2), nn.Tanh(),
        nn.Flatten(), nn.Linear(192, CLASSES),
    )  # fmt: skip


def dropping() -> nn.Module:
    """Return convolutions with max-pooling, hidden layers with dropout, and leaky ReLUs."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 1, 2), nn.LeakyReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, 1, 1), nn.LeakyReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(), nn.Linear(256, 64), nn.LeakyReLU(), nn.Dropout(), nn.Linear(64, CLASSES),
    )  # fmt: skip


class Sentence(nn.Module):
    """A text classifier of transformers that takes token ids and returns logits."""

    def __init__(self, family: str, settings: Mapping[str, int]) -> None:
        super().__init__()
        library = importlib.import_module("transformers")
        library.logging.set_verbosity_error()
        config = getattr(library, f"{family}Config")(
            vocab_size=200, num_labels=CLASSES, pad_token_id=0, **settings
        )
        self.inner = getattr(library, f"{family}ForSequenceClassification")(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits (N, 10) of sentences (N, T)."""
        logits: Tensor = self.inner(input_ids=input_ids).logits
        return logits


BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 24,
}  # fmt: skip
DISTILLED = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
             "max_position_embeddings": 24}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": 64, "n_positions": 24}


def _reader(
    title: str, family: str, settings: Mapping[str, int], keyword: str = "input_ids"
) -> Reader:
    build: Callable[[], nn.Module] = partial(Sentence, family, settings)
    return Reader(title, SEQUENTIAL, build, SENTENCE, keyword=keyword)


def _known(name: str, group: str, title: str, trained: int = 0) -> Stranger:
    """Return one of the adversary's networks under a title and group of this table."""
    found = next(one for one in (*HUGGING_FACE, *SEQUENCES) if one.name == name)
    return Stranger(title, group, found.build, found.shape, trained or found.trained)


NETWORKS: tuple[Stranger, ...] = (
    Stranger("MLP", TABLES, partial(perceptron, nn.ReLU), RECORD, trained=40),
    Stranger("MLP, leaky, no bias", TABLES, partial(perceptron, nn.LeakyReLU, False), RECORD),
    Stranger("MLP, tanh", TABLES, partial(perceptron, nn.Tanh), RECORD),
    Stranger("MLP, LayerNorm", TABLES, normalised, RECORD),
    Stranger("CNN, max-pooling", CONVOLUTIONS, partial(pooled, nn.ReLU), PICTURE, trained=40),
    Stranger("CNN, GELU, no bias", CONVOLUTIONS, partial(pooled, nn.GELU, False), PICTURE),
    Stranger("CNN, tanh", CONVOLUTIONS, smooth, PICTURE),
    Stranger("CNN, dropout", CONVOLUTIONS, dropping, PICTURE),
    _known("ResNet, trained", STRANGERS, "ResNet, trained"),
    _known("ConvNext", STRANGERS, "ConvNeXt"),
    _known("MobileNetV2", STRANGERS, "MobileNetV2, trained", 40),
    _known("ViT, trained", STRANGERS, "ViT, trained"),
    _reader("BERT", "Bert", BERT),
    _reader("DistilBERT", "DistilBert", DISTILLED),
    _reader("GPT-2, no bias", "GPT2", GPT, keyword=""),
    _known("GRU", SEQUENTIAL, "GRU"),
)
