"""A corner of the matrix: no label wrongly called unique, no green that leaks or was not tried."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from benchmarks.matrix.networks import NETWORKS
from benchmarks.matrix.run import Cell, cells
from benchmarks.matrix.table import page
from benchmarks.matrix.updates import KINDS
from softleak.audit import Leak, State

ROWS = ("MLP", "VGG, no head bias", "ViT, no head bias", "GRU")
COLUMNS = ("delta, not said", "decay 5e-4", "Adam", "batch of 16", "float16")
WRITTEN = Path(__file__).parents[2] / "docs" / "matrix.md"


@pytest.fixture(scope="module")
def corner() -> dict[tuple[str, str], Cell]:
    kinds = [kind for kind in KINDS if kind.name in COLUMNS]
    networks = [network for network in NETWORKS if network.name in ROWS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [cell for network in networks for cell in cells(network, kinds)]
    return {(cell.network, cell.kind): cell for cell in found}


def state(cell: Cell, leak: Leak) -> State:
    return cell.states[list(Leak).index(leak)]


def test_no_label_is_wrongly_called_unique_and_no_other_claim_is_wrong(corner):
    assert len(corner) == len(ROWS) * len(COLUMNS)
    assert not [cell for cell in corner.values() if cell.wrong_unique or cell.wrong]


def test_nothing_is_green_that_leaks_or_was_not_tried(corner):
    assert not [cell for cell in corner.values() if cell.green]


def test_weight_decay_hides_no_input(corner):
    assert state(corner["MLP", "decay 5e-4"], Leak.INPUT) is State.LEAKED


def test_a_difference_of_weights_nobody_called_so_gives_its_label_away(corner):
    cell = corner["MLP", "delta, not said"]
    assert cell.verdict == "AMBIGUOUS"
    assert {state(cell, leak) for leak in Leak} == {State.LEAKED}
    assert "its label" in cell.said


@pytest.mark.parametrize("kind", ["Adam", "batch of 16"])
def test_classes_no_attack_applies_to_are_not_attacked(corner, kind):
    cell = corner["ViT, no head bias", kind]
    assert set(cell.states) == {State.NOT_ATTACKED}


def test_the_written_table_has_every_row_and_column_and_no_fault():
    text = WRITTEN.read_text()
    assert all(f"| {network.name} |" in text for network in NETWORKS)
    assert all(f" {kind.name} |" in text for kind in KINDS)
    assert "| **wrong UNIQUE** | **0** |" in text
    assert "| **green where something leaks or nothing was tried** | **0** |" in text


def test_a_fault_is_shown_in_the_cell_and_counted():
    states = (State.NO_SUCCESS,) * len(Leak)
    bad = Cell("GRU", "Adam", "UNIQUE", states, True, (), ("input (leaks)",), "", 0.0)
    text = page([bad], 1.0)
    assert "unique ○○○○○ **wrong UNIQUE, green input (leaks)**" in text
    assert "| **wrong UNIQUE** | **1** |" in text
