"""Inputs by keyword: what a share remembers of them, in memory and in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.errors import DataError, FileError, ModelError
from softleak.core.forward import logits_of
from softleak.core.input_spec import InputPart, InputSpec, entries, random_tokens
from softleak.io import Content

TOKENS = InputPart("input_ids", (6,), True, 40)
MASK = InputPart("attention_mask", (6,), True)


class Reader(nn.Module):
    """A classifier of token sequences that answers with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 8)
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        weight = attention_mask[..., None].to(self.words.weight.dtype)
        mean = (self.words(input_ids) * weight).sum(1) / weight.sum(1)
        return {"logits": self.head(torch.tanh(self.inner(mean)))}


def test_a_share_remembers_the_keywords_and_the_table_of_its_input(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = {"input_ids": torch.arange(6), "attention_mask": torch.ones(6, dtype=torch.long)}
    share = sl.capture(Reader(), x, 1)
    assert share.input_shape == InputSpec((TOKENS, MASK))
    for ending in ("pt", "npz", "safetensors"):
        share.save(tmp_path / f"share.{ending}")
        assert sl.GradientShare.load(tmp_path / f"share.{ending}").input_shape == share.input_shape


def test_one_input_and_a_batch_of_one_are_the_same_input() -> None:
    model = Reader()
    x = {"input_ids": torch.arange(6), "attention_mask": torch.ones(6, dtype=torch.long)}
    one, batched = (
        sl.capture(model, given, 1) for given in (x, {k: v[None] for k, v in x.items()})
    )
    assert one.input_shape == batched.input_shape
    assert all(torch.equal(one[name], batched[name]) for name in one)


def test_a_batch_by_keyword_is_the_mean_of_its_samples() -> None:
    model = Reader().double()
    ids, mask = torch.randint(40, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    both = sl.capture(model, {"input_ids": ids, "attention_mask": mask}, torch.tensor([0, 2]))
    each = [
        sl.capture(model, {"input_ids": ids[i], "attention_mask": mask[i]}, label)
        for i, label in enumerate((0, 2))
    ]
    for name in both:
        torch.testing.assert_close(both[name], (each[0][name] + each[1][name]) / 2)


def test_labels_are_recovered_from_a_model_of_keywords() -> None:
    torch.manual_seed(0)
    model, y = Reader(), torch.tensor([0.5, 0.2, 0.3])
    x = {"input_ids": torch.arange(6), "attention_mask": torch.ones(6, dtype=torch.long)}
    found = sl.recover_label(model, sl.capture(model, x, y))
    assert found.status is sl.Status.UNIQUE
    assert (found.label - y).abs().sum() < 1e-5


def test_random_tokens_stay_within_their_table_and_vary_in_length() -> None:
    spec = InputSpec((TOKENS, MASK))
    generator = torch.Generator().manual_seed(0)
    long, short = (random_tokens(spec, index, generator) for index in range(2))
    assert isinstance(long, dict)
    assert isinstance(short, dict)
    assert [one["input_ids"].numel() for one in (long, short)] == [6, 4]
    assert int(long["input_ids"].max()) < 40
    assert bool((long["attention_mask"] == 1).all())


def test_a_model_whose_integers_point_nowhere_is_refused() -> None:
    with pytest.raises(ModelError, match="no embedding table"):
        random_tokens(InputSpec((MASK,)), 0, torch.Generator())


def test_sequences_of_other_lengths_are_alike() -> None:
    spec = InputSpec((TOKENS, MASK))
    assert spec.alike(spec.of_length(9))
    assert not spec.alike((6,))
    assert not spec.alike(InputSpec((TOKENS,)))
    assert entries(spec) == 12


@pytest.mark.parametrize(
    "parts",
    [
        "[]",
        '[["rm -rf", [4], true, 5]]',
        '[["x", [-4], true, 5]]',
        '[["x", [4], 1, 5]]',
        '[["x", [4], true, -5]]',
        '[["x", [4]]]',
        "7",
    ],
)
def test_a_file_cannot_claim_an_impossible_input(parts: str) -> None:
    with pytest.raises(FileError):
        Content.of({}, f'{{"input_shape": {{"parts": {parts}}}}}', ())


def test_inputs_without_keywords_are_refused() -> None:
    for wrong in ({}, {1: torch.zeros(3)}):
        with pytest.raises(DataError, match="keywords"):
            sl.capture(Reader(), wrong, 0)


def test_logits_are_found_in_tensors_tuples_and_objects() -> None:
    z = torch.zeros(1, 3)
    for output in (z, (z, None), [z], {"logits": z}, torch.return_types.max((z, z))):
        assert logits_of(output) is z
    for nothing in (None, {}, (), ("text",), {"scores": z}):
        assert logits_of(nothing) is None
