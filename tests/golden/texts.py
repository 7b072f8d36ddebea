"""Texts that are read from the gradients of small transformers."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.defenses import Cast, GaussianNoise, Int8, Prune
from tests.golden.networks import drawn

WORDS, WIDTH, PLACES, CLASSES = 60, 32, 24, 4


class Reader(nn.Module):
    """A transformer encoder over words and learned positions, or none."""

    def __init__(self, learned: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(PLACES, WIDTH) if learned else None
        self.norm = nn.LayerNorm(WIDTH)
        layers = (nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True) for _ in "ab")
        self.layers = nn.ModuleList(layers)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor) -> Tensor:
        z = self.words(input_ids)
        if self.places is not None:
            z = z + self.places(torch.arange(input_ids.shape[1]))
        z = self.norm(z)
        for layer in self.layers:
            z = layer(z)
        return self.head(torch.tanh(self.inner(z[:, 0])))


class Bag(nn.Module):
    """A mean of words and positions: every place has the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor) -> Tensor:
        z = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        return self.head(torch.tanh(self.inner(z.mean(1))))


def _hugging(kind: str) -> nn.Module:
    import transformers as t

    small = {"vocab_size": 80, "num_labels": CLASSES}
    if kind == "bert":
        config = t.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=24, **small,
        )  # fmt: skip
        return t.BertForSequenceClassification(config)
    if kind == "distilbert":
        config = t.DistilBertConfig(
            dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=24, **small
        )
        return t.DistilBertForSequenceClassification(config)
    config = t.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=24, pad_token_id=0, **small)
    return t.GPT2ForSequenceClassification(config)


MODELS = {
    "reader": Reader,
    "orderless": partial(Reader, learned=False),
    "bag": Bag,
    "bert": partial(_hugging, "bert"),
    "distilbert": partial(_hugging, "distilbert"),
    "gpt2": partial(_hugging, "gpt2"),
}
FROZEN = ("words.weight", "places.weight")
CHANGES = {
    "plain": lambda share: share,
    "scaled": lambda share: share.scaled(1e-3),
    "frozen": lambda share: share.without(*FROZEN),
    "no_places": lambda share: share.without("places.weight"),
    "noise": GaussianNoise(1e-4, 3),
    "half": Cast(torch.float16),
    "int8": Int8(),
    "pruned": Prune(0.9),
}
CASES = {
    f"{model}_{change}_{length}": (model, change, length)
    for model, change, lengths in (
        ("reader", "plain", (3, 9, 24)), ("reader", "scaled", (7,)), ("reader", "frozen", (4, 12)),
        ("reader", "no_places", (5, 10)), ("reader", "noise", (6, 12)), ("reader", "half", (8,)),
        ("reader", "int8", (8,)), ("reader", "pruned", (8,)), ("orderless", "plain", (6, 9)),
        ("bag", "plain", (5,)), ("bert", "plain", (5, 12)), ("bert", "half", (6,)),
        ("distilbert", "plain", (4, 10)), ("gpt2", "plain", (5, 9)), ("gpt2", "scaled", (6,)),
    )
    for length in lengths
}  # fmt: skip


def made_text(model: str, change: str, length: int):
    """Return a model and the share of a random text of a length."""
    net = drawn(MODELS[model](), length, 1.7)
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(1, WORDS, (length,), generator=generator)
    return net, CHANGES[change](sl.capture(net, {"input_ids": ids}, torch.tensor(length % CLASSES)))


def text(name: str) -> dict:
    """Return the tokens of a text and how certain each is."""
    model, share = made_text(*CASES[name])
    found = sl.invert(model, share, sl.recover_label(model, share))
    places = found.text.places
    return {
        "tokens": list(found.tokens),
        "status": [place.certainty.name for place in places],
        "candidates": [len(place.candidates) for place in places],
        "words": list(found.text.words),
        "explained": found.text.explained,
        "certain": found.text.certain,
    }
