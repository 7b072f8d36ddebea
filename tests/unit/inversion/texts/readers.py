"""Small text classifiers: one transformer, and variants that hide one thing or another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.inversion.results import Certainty, Text

WORDS, WIDTH, PLACES, CLASSES = 60, 32, 24, 4


class Reader(nn.Module):
    """A transformer encoder over words and learned positions."""

    def __init__(self, *, learned: bool = True, tied: bool = False, padding: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0 if padding else None)
        self.places = nn.Embedding(PLACES, WIDTH) if learned else None
        self.norm = nn.LayerNorm(WIDTH)
        layers = (nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True) for _ in "ab")
        self.layers = nn.ModuleList(layers)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.tied = tied

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        z = self.words(input_ids)
        if self.places is not None:
            z = z + self.places(torch.arange(input_ids.shape[1], device=z.device))
        hidden = None if attention_mask is None else attention_mask == 0
        z = self.norm(z)
        for layer in self.layers:
            z = layer(z, src_key_padding_mask=hidden)
        z = z[:, 0]
        if self.tied:  # the table is used a second time, as a language model's head does
            z = z + torch.softmax(z @ self.words.weight.T, -1) @ self.words.weight
        logits: Tensor = self.head(torch.tanh(self.inner(z)))
        return logits


class Bag(nn.Module):
    """A mean of words and positions: every place has the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor) -> Tensor:
        z = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        logits: Tensor = self.head(torch.tanh(self.inner(z.mean(1))))
        return logits


class Weighted(Bag):
    """A weighted mean: gradients of places are multiples of one vector."""

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        z = self.words(input_ids) + self.places(torch.arange(length))
        weight = torch.linspace(1, 2, PLACES, dtype=z.dtype)[:length, None].sin()
        logits: Tensor = self.head(torch.tanh(self.inner((z * weight).mean(1))))
        return logits


def made(kind: type[nn.Module] = Reader, seed: int = 0, **settings: bool) -> nn.Module:
    """Return a classifier with weights of a seed, in eval mode."""
    torch.manual_seed(seed)
    return kind(**settings).eval()


def sentence(length: int, seed: int, *, words: int = WORDS) -> Tensor:
    """Return random tokens; few ``words`` make repeats."""
    return torch.randint(1, words, (length,), generator=torch.Generator().manual_seed(seed))


def read(model: nn.Module, ids: Tensor, *withheld: str, label: int = 1) -> Text:
    """Return what a share of one sentence tells, some gradients withheld."""
    share = sl.capture(model, {"input_ids": ids}, label)
    found = sl.invert(model, share.without(*withheld), sl.recover_label(model, share))
    assert found.text is not None
    return found.text


def wrong(text: Text, ids: Tensor) -> int:
    """Return how many tokens are called certain and are not the true ones."""
    true = ids.tolist()
    sure = (p for p in text.places if p.certainty is Certainty.CERTAIN)
    return sum(p.position >= len(true) or p.token != true[p.position] for p in sure)
