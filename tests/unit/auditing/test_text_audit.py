"""An audit of a text classifier: words on the page, what freezing buys, and a tokenizer's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import softleak as sl
from softleak.audit import Method, Options, Truth
from softleak.audit.input_attacks import embeddings
from softleak.audit.leaks import Leak
from softleak.audit.options import TokenNames
from softleak.audit.report import Outcome
from softleak.core.errors import FileError
from softleak.core.vocabulary import State
from softleak.present.catalogue import endings
from softleak.present.words import headline
from tests.unit.inversion.texts.readers import made, sentence

NAMES = TokenNames({i: f"word{i}" for i in range(60)})


def report(*withheld: str) -> tuple[sl.AuditReport, torch.Tensor]:
    model, ids = made(), sentence(9, 1)
    share = sl.capture(model, {"input_ids": ids}, 2).without(*withheld)
    options = Options(tokens=NAMES, seconds=0.0)
    return sl.audit(model, share, options=options, truth=Truth(torch.tensor(2), ids)), ids


def test_an_audit_shows_the_words_beside_the_truth(tmp_path: Path) -> None:
    found, ids = report()
    assert found.input.method == Method.TEXT
    assert found.states[Leak.INPUT] is State.LEAKED
    assert found.score is not None
    assert found.score.tokens_right == 1.0
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"word{int(ids[0])}" in page
    assert "9 of 9 words certain" in page
    assert "its text, every word in its place" in page
    assert "the input itself." not in page


def test_freezing_the_embeddings_is_read_from_the_first_layer() -> None:
    found, _ = report("words.weight", "places.weight")
    assert found.states[Leak.INPUT] is State.LEAKED
    assert found.score is not None
    assert found.score.tokens_right == 1.0


def test_adapters_alone_are_not_attacked_and_say_why() -> None:
    model, ids = made(), sentence(9, 1)
    share = sl.capture(model, {"input_ids": ids}, 2)
    kept = ("head.weight", "head.bias")
    found = sl.audit(model, share.without(*(n for n in share if n not in kept)))
    assert found.states[Leak.INPUT] is State.NOT_ATTACKED
    assert "no way to their words" in found.input.message or "lacks" in found.input.message


def test_the_parameters_that_tell_a_text_are_named() -> None:
    model = made()
    spec = sl.capture(model, {"input_ids": sentence(9, 1)}, 2).input_shape
    assert embeddings(sl.Subject.of(model, spec)) == ("words.weight", "places.weight")


def test_texts_of_other_lengths_share_a_subject() -> None:
    model = made()
    for length in (6, 14):
        ids = sentence(length, length)
        found = sl.audit(model, sl.capture(model, {"input_ids": ids}, 2))
        assert found.input.text is not None
        assert found.input.text.tokens == tuple(ids.tolist())


def test_words_of_tokenizer_files(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\nfire\n##man\n")
    pieces = TokenNames.load(tmp_path)
    assert pieces.sentence([1, 2, None, 7]) == "fireman ? #7"
    held = {"model": {"vocab": {"Ġa": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    pairs = TokenNames.load(tmp_path / "tokenizer.json")
    assert pairs.sentence([2, 0, 1, 0]) == "<s> ab a"
    (tmp_path / "vocab.json").write_text("[]")
    with pytest.raises(FileError, match="no vocabulary"):
        TokenNames.load(tmp_path / "vocab.json")


def trained(ids: torch.Tensor, labels: torch.Tensor, **settings: float) -> sl.AuditReport:
    """Return the audit of an update that an optimiser of PyTorch made in three steps."""
    model, after = made(), made()
    optimiser = torch.optim.SGD(after.parameters(), lr=0.01, **settings)
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(after(input_ids=ids), labels).backward()
        optimiser.step()
    client = sl.Client(lr=0.01, steps=3, **settings)
    return mixed(
        sl.GradientShare.from_update(model.state_dict(), after.state_dict(), client=client), model
    )


def mixed(update: sl.GradientShare, model: torch.nn.Module) -> sl.AuditReport:
    return sl.audit(model, update, options=Options(seconds=0.0))


def test_several_texts_give_their_words_away_and_no_places() -> None:
    model = made()
    ids = torch.stack([sentence(9, seed) for seed in (1, 2, 3)])
    share = sl.capture(model, {"input_ids": ids}, torch.tensor([0, 1, 2]))
    found = mixed(share, model)
    assert found.several
    assert found.input.text is not None
    assert found.input.text.places == ()
    assert set(found.input.text.words) == set(ids.flatten().tolist())
    assert "words of its texts (but not which text has which word)" in headline(found)
    assert "0 samples" not in headline(found)


def test_local_training_on_texts_gives_their_words_away() -> None:
    ids = torch.stack([sentence(9, seed) for seed in (1, 2)])
    found = trained(ids, torch.tensor([0, 1]), momentum=0.9)
    assert found.states[Leak.INPUT] is State.LEAKED
    assert found.input.text is not None
    assert set(found.input.text.words) == set(ids.flatten().tolist())
    ends = endings(found)
    assert ends["input-embeddings"][0] is Outcome.SUCCEEDED
    assert ends["input-gauss-newton"][1] == "the update is one of local training"


def test_words_are_told_beside_a_decay_of_all_weights() -> None:
    ids = sentence(9, 1)
    found = trained(ids[None], torch.tensor([1]), weight_decay=0.1)
    assert found.states[Leak.INPUT] is State.LEAKED
    assert found.input.text is not None
    assert set(found.input.text.words) == set(ids.flatten().tolist())
