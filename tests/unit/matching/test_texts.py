"""Texts that are solved for with all gradients together: whole, and never wrong and certain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.inversion.results import NoWay, Text
from softleak.matching.texts import solve_text
from tests.unit.inversion.texts.readers import sentence, wrong

SECONDS = 60.0


class Adapted(nn.Module):
    """A matrix with a low-rank one beside it, as LoRA has."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.lora_B(self.lora_A(x))
        return out


class Block(nn.Module):
    """Attention of one head and a small network, both with adapters."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.query, self.value, self.key, self.inner, self.outer = (
            nn.Linear(width, width) for _ in range(5)
        )
        self.query, self.value = Adapted(self.query, rank), Adapted(self.value, rank)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, z: Tensor) -> Tensor:
        scores = self.query(z) @ self.key(z).transpose(1, 2) / z.shape[-1] ** 0.5
        z = self.first(z + scores.softmax(-1) @ self.value(z))
        out: Tensor = self.second(z + self.outer(nn.functional.gelu(self.inner(z))))
        return out


class Encoder(nn.Module):
    """A frozen text classifier of which adapters and the head are trained."""

    def __init__(self, words: int = 40, width: int = 16, rank: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(12, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, rank) for _ in range(2)))
        self.head = nn.Linear(width, 3)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora" in name or "head" in name)

    def forward(self, input_ids: Tensor) -> Tensor:
        z = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        logits: Tensor = self.head(self.blocks(self.norm(z))[:, 0])
        return logits


def solved(model: nn.Module, share: sl.GradientShare) -> Text | NoWay:
    subject = Subject.of(model, share.input_shape)
    return solve_text(subject, share, sl.recover_label(model, share), SECONDS)


def encoder(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Encoder().eval()


def test_a_text_longer_than_the_ranks_is_whole_and_certain() -> None:
    model = encoder()
    ids = sentence(6, 1, words=40)  # query and value of rank two span four dimensions
    share = sl.capture(model, {"input_ids": ids}, 1)
    text = solved(model, share)
    assert isinstance(text, Text)
    assert text.tokens == tuple(ids.tolist())
    assert text.certain


def test_two_words_with_equal_rows_are_not_told_apart() -> None:
    model = encoder()
    ids = sentence(6, 1, words=40)
    twin = next(w for w in range(40) if w not in ids.tolist())
    with torch.no_grad():
        model.words.weight[twin] = model.words.weight[ids[3]]  # type: ignore[union-attr, operator]
    share = sl.capture(model, {"input_ids": ids}, 1)
    text = solved(model, share)
    if isinstance(text, Text):
        assert not text.certain
        assert wrong(text, ids) == 0


@pytest.mark.parametrize("change", ["noise", "pruned", "half"])
def test_a_changed_share_has_no_wrong_word_that_is_certain(change: str) -> None:
    model, ids = encoder(), sentence(6, 2, words=40)
    share = sl.capture(model, {"input_ids": ids}, 1)
    changes = {
        "noise": lambda g: g + 1e-3 * g.abs().mean() * torch.randn(g.shape),
        "pruned": lambda g: torch.where(g.abs() > g.abs().median(), g, 0.0),
        "half": lambda g: g.half().float(),
    }
    subject = Subject.of(model, share.input_shape)
    recovery = sl.recover_label(model, share)  # of the honest share, for the search to begin
    sent = share.map(lambda _, g: changes[change](g))
    text = solve_text(subject, sent, recovery, 3.0)
    assert isinstance(text, NoWay) or wrong(text, ids) == 0


def test_a_model_without_a_table_has_no_text() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    share = sl.capture(model, torch.randn(1, 3, 2, 2), 1)
    subject = Subject.of(model, share.input_shape)
    assert isinstance(solve_text(subject, share, sl.recover_label(model, share), 1.0), NoWay)
