"""Texts of causal language models: whole, in their order, and never a wrong word called certain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.audit.leaks import Leak
from softleak.core.errors import LabelError, ModelError, OptionError
from softleak.inversion.results import Text
from tests.unit.inversion.texts.readers import made, sentence, wrong

WORDS, WIDTH = 60, 32


class Speaker(nn.Module):
    """A causal transformer that predicts the next word, with learned positions or none."""

    def __init__(self, *, learned: bool = True, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(24, WIDTH) if learned else None
        layers = (
            nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True, norm_first=True)
            for _ in "abc"
        )
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        z = self.words(input_ids)
        if self.places is not None:
            z = z + self.places(torch.arange(input_ids.shape[1], device=z.device))
        hidden = nn.Transformer.generate_square_subsequent_mask(z.shape[1]).to(z)
        for layer in self.layers:
            z = layer(z, src_mask=hidden, is_causal=True)
        logits: Tensor = self.head(self.norm(z))
        return logits


def read(model: nn.Module, ids: Tensor, change: Callable[[Tensor], Tensor] = lambda g: g) -> Text:
    """Return what an update of one text tells."""
    share = sl.capture(model, {"input_ids": ids}, loss="next-token")
    found = sl.invert(model, share.map(lambda _, g: change(g))).text
    assert found is not None
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("learned", [True, False])  # without positions the order is the layers'
@pytest.mark.parametrize("length", [5, 12, 20])
def test_a_text_is_whole_and_certain(tied: bool, learned: bool, length: int) -> None:
    ids = sentence(length, length)
    text = read(made(Speaker, learned=learned, tied=tied), ids)
    assert text.tokens == tuple(ids.tolist())
    assert text.certain
    assert set(text.words) == set(ids.tolist())


def test_a_scale_changes_nothing() -> None:
    ids = sentence(9, 3)
    text = read(made(Speaker, tied=True), ids, lambda g: 0.037 * g)
    assert text.tokens == tuple(ids.tolist())
    assert text.certain


@pytest.mark.parametrize("learned", [True, False])
def test_no_wrong_word_is_certain_behind_changes(learned: bool) -> None:
    def noisy(g: Tensor) -> Tensor:
        drawn = torch.randn(g.shape, generator=torch.Generator().manual_seed(0))
        return g + 1e-3 * g.abs().mean() * drawn

    model, ids = made(Speaker, learned=learned, tied=True), sentence(10, 5)
    changes = (noisy, torch.sign, lambda g: g.half().float(), lambda g: torch.where(g > 0, g, 0))
    for change in changes:
        assert wrong(read(model, ids, change), ids) == 0


def test_two_texts_in_one_update_are_not_one() -> None:
    model = made(Speaker, tied=True)
    ids = torch.stack([sentence(8, 1), sentence(8, 2)])
    share = sl.capture(model, {"input_ids": ids}, loss="next-token")
    found = sl.invert(model, share).text
    assert found is not None
    assert not found.certain


def test_the_loss_is_that_of_torch() -> None:
    model, ids = made(Speaker), sentence(7, 4)
    share = sl.capture(model, {"input_ids": ids}, loss="next-token")
    logits = model(ids[None])
    torch.nn.functional.cross_entropy(logits[0, :-1], ids[1:]).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(share[name], parameter.grad, atol=1e-7)


def test_padding_is_not_predicted() -> None:
    model, ids = made(Speaker), sentence(7, 4)
    padded = torch.cat([ids, torch.zeros(3, dtype=torch.long)])
    wanted = torch.cat([ids, torch.full((3,), -100)])
    one = sl.capture(model, {"input_ids": ids}, loss="next-token")
    other = sl.capture(model, {"input_ids": padded}, wanted, loss="next-token")
    assert torch.allclose(one["head.weight"], other["head.weight"], atol=1e-6)


def test_an_audit_names_the_text_and_attacks_no_label() -> None:
    model, ids = made(Speaker), sentence(9, 6)
    share = sl.capture(model, {"input_ids": ids}, loss="next-token")
    report = sl.audit(model, share, loss="next-token")
    assert report.leaks == {Leak.INPUT}
    assert report.input.text is not None
    assert report.input.text.tokens == tuple(ids.tolist())


def test_a_mistake_is_explained() -> None:
    model, ids = made(Speaker), sentence(9, 6)
    with pytest.raises(ModelError, match="next-token"):
        sl.capture(model, {"input_ids": ids}, 1)
    with pytest.raises(LabelError, match="token id for each"):
        sl.capture(model, {"input_ids": ids}, torch.zeros(2, 9), loss="next-token")
    share = sl.capture(model, {"input_ids": ids}, loss="next-token")
    with pytest.raises(OptionError, match="answer once"):
        sl.audit(model, share, loss="ce")
