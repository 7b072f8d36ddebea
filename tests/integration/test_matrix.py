"""A corner of the matrix: no claim that is wrong, and no all-clear that is none."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.matrix.client import Client
from benchmarks.matrix.judge import wrong_claims
from benchmarks.matrix.networks import NETWORKS
from benchmarks.matrix.run import Cell, audited, cells
from benchmarks.matrix.simple import simple_leaks
from benchmarks.matrix.table import page
from benchmarks.matrix.updates import KINDS, Sent
from softleak.audit import Leak
from softleak.core.subject import Subject

ROWS = (
    "gradient", "smoothed", "batch of 2", "checkpoints", "swapped", "BCE", "MSE", "temperature",
    "top-k 1 %", "wrong noise", "other weights", "AdamW",
)  # fmt: skip
COLUMNS = ("MLP", "MLP, leaky, no bias", "CNN, GELU, no bias", "DistilBERT")
WRITTEN = Path(__file__).parents[2] / "docs" / "matrix.md"


@pytest.fixture(scope="module")
def corner() -> list[Cell]:
    kinds = [kind for kind in KINDS if kind.name in ROWS]
    networks = [network for network in NETWORKS if network.name in COLUMNS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [cell for network in networks for cell in cells(network, kinds)]


def faults(cells: list[Cell], what: str) -> dict[str, tuple[str, ...]]:
    """Return the faults of one sort, by network and kind of update."""
    return {f"{c.network}: {c.kind}": getattr(c, what) for c in cells if getattr(c, what)}


def test_no_claim_is_wrong(corner):
    assert len(corner) == len(ROWS) * len(COLUMNS)
    assert faults(corner, "wrong") == {}


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        ("ViT, trained", "layer-wise"),
        ("MLP", "top-k 1 %"),
        ("DistilBERT", "AdamW"),
        ("GPT-2, no bias", "AdamW, 5"),
        ("ConvNeXt", "AdamW, 5"),
        ("MobileNetV2, trained", "AdamW, 5"),
        ("BERT", "AdamW, 5"),
        ("MLP, tanh", "bfloat16"),
        ("MLP, tanh", "dropout"),
    ],
)
def test_a_cell_that_once_was_not_right_is(network, kind):
    row, column = (
        next((i, one) for i, one in enumerate(all_) if one.name == name)
        for all_, name in ((NETWORKS, network), (KINDS, kind))
    )
    (cell,) = cells(row[1], [column[1]], row[0] + column[0])
    assert not (*cell.wrong, *cell.green, *cell.tiles)


def test_no_all_clear_is_none(corner):
    assert faults(corner, "green") == {}


def test_no_green_tile_stands_beside_what_leaked_although_it_leaks(corner):
    assert faults(corner, "tiles") == {}


def test_what_is_sound_is_proved(corner):
    sound = ("gradient", "smoothed", "checkpoints")
    assert {cell.word.rstrip("*°") for cell in corner if cell.kind in sound} == {"proved"}


def made(network: str, kind: str) -> tuple[Subject, Sent]:
    client = Client(next(one for one in NETWORKS if one.name == network))
    sent = next(one for one in KINDS if one.name == kind).make(client, 0)
    return Subject.of(client.model, client.layout), sent


@pytest.mark.parametrize(
    ("network", "kind", "leaks"),
    [
        ("MLP", "gradient", {Leak.COMPOSITION, Leak.CLASS, Leak.FEATURE, Leak.INPUT}),
        ("MLP", "BCE", {Leak.COMPOSITION, Leak.FEATURE, Leak.INPUT}),
        ("MLP, leaky, no bias", "MSE", {Leak.INPUT}),
        ("DistilBERT", "AdamW", {Leak.COMPOSITION, Leak.CLASS, Leak.INPUT}),
        ("DistilBERT", "noise", set()),
        ("CNN, GELU, no bias", "gradient", set()),
    ],
)
def test_one_line_of_arithmetic_reads(network, kind, leaks):
    subject, sent = made(network, kind)
    assert simple_leaks(subject, sent).keys() >= leaks
    assert leaks or not simple_leaks(subject, sent).keys() & {Leak.FEATURE, Leak.INPUT}


def test_the_judge_sees_a_claim_that_is_not_true():
    subject, sent = made("MLP", "gradient")
    report = audited(subject, sent)
    assert not wrong_claims(subject, report, sent)
    moved = sent.data.y.roll(1, dims=1)
    lied = replace(sent, data=replace(sent.data, y=moved), labels=moved)
    assert {"label unique"} <= set(wrong_claims(subject, report, lied))
    other = replace(sent.data, x=torch.rand_like(sent.data.x))
    assert "input" in wrong_claims(subject, report, replace(sent, data=other))


def test_the_written_table_has_every_row_and_column_and_counts_its_faults():
    text = WRITTEN.read_text()
    assert all(f"| {network.name} " in text for network in NETWORKS)
    assert all(f"\n| {kind.name} " in text for kind in KINDS)
    tables = text[: text.index("## Counts")]
    assert max(map(len, tables.splitlines())) <= 100
    for fault in ("WRONG: a claim that is not true", "GREEN: an all-clear that is none"):
        assert f"| **{fault}** | **" in text  # how many there are, none hidden


def test_a_fault_is_shown_in_the_cell_counted_and_named():
    bad = Cell("GRU", "AdamW", "WRONG", 0, wrong=("label unique",))
    text = page([bad], 1.0)
    assert "| AdamW | **WRONG** |" in text
    assert "| **WRONG: a claim that is not true** | **1** |" in text
    assert "| WRONG | AdamW | label unique | GRU |" in text
