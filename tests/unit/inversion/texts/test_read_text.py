"""Words from gradients: the right one in its place, and never a wrong one called certain."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.core.errors import ModelError
from softleak.defenses import Cast, GaussianNoise, Int8, Prune
from softleak.inversion.results import Certainty, NoWay
from softleak.inversion.texts.embeddings import TextPlan, text_plan
from tests.unit.inversion.texts.readers import (
    WORDS,
    Bag,
    Reader,
    Weighted,
    made,
    read,
    sentence,
    wrong,
)

FROZEN = ("words.weight", "places.weight")


@pytest.mark.parametrize("length", [3, 8, 17, 24])
@pytest.mark.parametrize("words", [7, WORDS])  # with few words most are repeated
def test_every_word_is_certain_in_its_place(length: int, words: int) -> None:
    ids = sentence(length, length, words=words)
    text = read(made(), ids)
    assert text.tokens == tuple(ids.tolist())
    assert text.certain
    assert text.explained
    assert text.words == tuple(sorted(set(ids.tolist())))


def test_padding_is_empty_or_named_by_exclusion() -> None:
    ids, mask = torch.tensor([5, 9, 5, 3, 0, 0]), torch.tensor([1, 1, 1, 1, 0, 0])
    model = made(padding=True)
    share = sl.capture(model, {"input_ids": ids, "attention_mask": mask}, 1)
    assert sl.invert(model, share).tokens == (5, 9, 5, 3)
    unmasked = read(model, ids)  # padding that the model reads has a place but no row of its own
    assert unmasked.tokens == tuple(ids.tolist())
    told = [place.certainty for place in unmasked.places]
    assert told == [Certainty.CERTAIN] * 4 + [Certainty.LIKELY] * 2


def test_a_word_whose_row_was_withheld_is_not_certainly_padding() -> None:
    model, ids = made(padding=True), torch.tensor([5, 9, 5, 3, 7, 2])
    share = sl.capture(model, {"input_ids": ids}, 1)
    rows = torch.ones(WORDS, 1)
    rows[9] = 0
    sent = share.map(lambda name, g: g * rows if name == "words.weight" else g)
    found = sl.invert(model, sent).text
    assert found is not None
    assert wrong(found, ids) == 0


def test_a_scale_changes_nothing_and_no_label_is_needed() -> None:
    model, ids = made(), sentence(9, 1)
    share = sl.capture(model, {"input_ids": ids}, 1).scaled(1e-5)
    found = sl.invert(model, share)
    assert found.tokens == tuple(ids.tolist())
    assert found.determined
    assert found.error.abs().max() == 0


@pytest.mark.parametrize("length", [4, 12, 20])
def test_frozen_embeddings_are_read_from_the_first_layer(length: int) -> None:
    ids = sentence(length, length)
    text = read(made(), ids, *FROZEN)
    assert text.tokens == tuple(ids.tolist())
    assert wrong(text, ids) == 0
    assert "lacks words.weight" in text.message


def test_the_order_of_fixed_positions_is_read_from_the_first_layer() -> None:
    ids = sentence(10, 3)
    text = read(made(), ids, "places.weight")
    assert text.tokens == tuple(ids.tolist())
    assert text.words == tuple(sorted(set(ids.tolist())))


def test_more_tokens_than_the_layer_is_wide_exclude_nothing() -> None:
    model = made()
    share = sl.capture(model, {"input_ids": sentence(24, 0)}, 1).without(*FROZEN)
    blurred = share.map(lambda _, g: g + 1e-3 * torch.randn(g.shape).to(g))
    found = sl.invert(model, blurred, sl.recover_label(model, share)).text
    assert found is not None
    assert found.count(Certainty.CERTAIN) == 0
    assert "no token is excluded" in found.message


def test_without_positions_the_words_are_known_and_not_their_order() -> None:
    ids = sentence(9, 2)
    text = read(made(learned=False), ids)
    assert text.places == ()
    assert text.words == tuple(sorted(set(ids.tolist())))
    assert "order" in text.message


def test_a_table_that_is_used_twice_is_a_clear_statement() -> None:
    model, ids = made(tied=True), sentence(8, 4)
    plan = text_plan(sl.Subject.of(model, sl.capture(model, {"input_ids": ids}, 1).input_shape))
    assert isinstance(plan, TextPlan)
    assert not plan.sound
    text = read(model, ids)
    assert wrong(text, ids) == 0
    assert "used elsewhere" in text.message


def test_adapters_alone_are_a_clear_statement() -> None:
    model, ids = made(), sentence(8, 5)
    share = sl.capture(model, {"input_ids": ids}, 1)
    kept = ("head.weight", "head.bias", "inner.weight", "inner.bias")
    sent = share.without(*(name for name in share if name not in kept))
    with pytest.raises(ModelError, match="no way to their words"):
        sl.invert(model, sent, sl.recover_label(model, sent))


@pytest.mark.parametrize("kind", [Bag, Weighted])
@pytest.mark.parametrize("seed", range(8))
def test_places_that_cannot_be_told_apart_are_not_called_certain(
    kind: type[torch.nn.Module], seed: int
) -> None:
    ids = sentence(20, seed, words=30)
    text = read(made(kind, seed), ids)
    assert wrong(text, ids) == 0
    assert not text.certain
    assert text.words == tuple(sorted(set(ids.tolist())))


@pytest.mark.parametrize("seed", range(6))
def test_several_texts_leave_no_wrong_word_certain(seed: int) -> None:
    model = made(Reader, seed)
    ids = torch.stack([sentence(9, 10 * seed + i) for i in range(3)])
    ids[:, 0] = 2  # as a class token is
    share = sl.capture(model, {"input_ids": ids}, torch.tensor([0, 1, 2]))
    found = sl.invert(model, share).text
    assert found is not None
    assert found.count(Certainty.CERTAIN) == 0
    assert found.words == tuple(sorted(set(ids.flatten().tolist())))


@pytest.mark.parametrize(
    "defence",
    [Cast(torch.float16), Cast(torch.bfloat16), Int8(), Prune(0.3), Prune(0.02)]
    + [GaussianNoise(10.0**-power, 0) for power in (2, 4, 6)],
)
def test_no_defence_makes_a_wrong_word_certain(defence: sl.defenses.Defense) -> None:
    for seed in range(3):
        model, ids = made(Reader, seed), sentence(15, seed, words=25)
        share = sl.capture(model, {"input_ids": ids}, 1)
        for withheld in ((), FROZEN):
            sent = defence(share.without(*withheld))
            text = sl.invert(model, sent, sl.recover_label(model, share)).text
            assert text is not None
            assert wrong(text, ids) == 0


@pytest.mark.parametrize("learned", [True, False])
def test_noise_in_a_small_table_is_not_taken_for_words(learned: bool) -> None:
    model, ids = made(learned=learned), sentence(9, 2)
    share = sl.capture(model, {"input_ids": ids}, 1)
    generator = torch.Generator().manual_seed(0)
    noisy = share.map(lambda _, g: g + 1e-6 * torch.randn(g.shape, generator=generator))
    found = sl.invert(model, noisy, sl.recover_label(model, share)).text  # of unknown noise
    assert found is not None
    assert found.words == ()
    assert found.count(Certainty.CERTAIN) == 0


def test_words_behind_noise_are_right_where_they_are_called_likely() -> None:
    model = made()
    for seed in range(4):
        ids = sentence(12, seed)
        share = sl.capture(model, {"input_ids": ids}, 1)
        size = 0.02 * float(share["places.weight"][:12].square().mean().sqrt())
        sent = GaussianNoise(size, seed)(share).expecting(size)
        text = sl.invert(model, sent, sl.recover_label(model, share)).text
        assert text is not None
        likely = [p for p in text.places if p.certainty is Certainty.LIKELY]
        assert len(likely) > 3
        assert all(p.token == int(ids[p.position]) for p in likely)


def test_real_numbers_are_not_read_as_a_text() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 3))
    plan = text_plan(sl.Subject.of(model, (6,)))
    assert isinstance(plan, NoWay)
