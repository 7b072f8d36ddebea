from __future__ import annotations

import pytest

from softleak.core.errors import FileError, OptionError
from softleak.paper.experiment import Column, Size, Unit
from softleak.paper.reproduction import (
    BEGIN,
    CLAIMS,
    END,
    EXPERIMENTS,
    Standing,
    Verdict,
    entry,
    markdown,
    splice,
    tabulated,
)
from softleak.paper.reproduction import ResultsPage as Results
from softleak.paper.sweep import Record, Records

TABLE2 = EXPERIMENTS["table2"]
CELL = TABLE2.cell("lenet, smoothed")


def records_of(cell, values, measure="head_exact", experiment="table2"):
    return [Record(experiment, cell.name, 0, i, {measure: v}) for i, v in enumerate(values)]


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_cells_have_names_of_their_own_and_columns_for_the_papers_values(experiment):
    names = [cell.name for cell in experiment.cells]
    assert len(set(names)) == len(names)
    compared = {column.paper for column in experiment.columns}
    for cell in experiment.cells:
        assert cell.paper.keys() <= compared
        assert experiment.cell(cell.name) is cell


def test_the_paper_has_so_many_cells():
    with_values = {
        name: sum(bool(cell.paper) for cell in e.cells) for name, e in EXPERIMENTS.items()
    }
    # Table 3: five sources and a polish in eight settings, and exact inversion in four.
    assert with_values == {
        "table1": 9, "table2": 16, "table3": 52, "table4": 20, "table5": 8, "fcn": 2, "batches": 0,
        "leaderboard": 0,
    }  # fmt: skip


def test_more_samples_are_the_fewer_and_some_more():
    few, many = (list(TABLE2.pieces(CELL, Size(samples=n, repeats=2))) for n in (3, 5))
    assert set(few) < set(many)
    matched = EXPERIMENTS["table4"].cells[0]
    assert [p.samples for p in EXPERIMENTS["table4"].pieces(matched, Size(samples=16))] == [
        tuple(range(15)), tuple(range(15, 30))
    ]  # fmt: skip
    assert len(list(TABLE2.pieces(CELL, Size(full=True)))) == 1000


def test_a_cell_that_is_not_there_is_said():
    with pytest.raises(OptionError, match="no cell"):
        TABLE2.cell("lenet, arbitrary")


@pytest.mark.parametrize(
    ("values", "ours", "verdict"),
    [
        ([True] * 4, "100.0%", Verdict.BETTER),
        ([True] * 997 + [False] * 3, "99.7%", Verdict.EQUAL),
        ([True, False], "50.0%", Verdict.WORSE),
        ([None], "–", Verdict.NONE),
    ],
)
def test_ours_is_judged_as_it_is_written(values, ours, verdict):
    found = entry(TABLE2.columns[0], CELL, records_of(CELL, values))
    assert (found.ours, found.paper, found.verdict) == (ours, "99.7%", verdict)


def test_of_errors_the_smaller_is_better_and_what_has_none_is_left_out():
    column = Column("", "head_L1", Unit.SMALL, "L1", higher=False)
    found = entry(column, CELL, records_of(CELL, [1e-7, None, 3e-7], "head_L1"))
    assert (found.ours, found.verdict) == ("2.00e-07", Verdict.BETTER)


def test_a_table_says_what_it_falls_short_of(tmp_path):
    with Records(tmp_path) as records:
        records.declare("table2", CELL.name, {"shortfall": "200 images of the 10000"})
        records.append(records_of(CELL, [True, True]))
        (table,) = tabulated(TABLE2, records)
    assert table.columns == ("head only",)
    (row,) = table.rows
    assert row.note == "2 samples of the paper's 1000; 200 images of the 10000"


def test_a_cell_the_paper_has_not_falls_short_of_nothing(tmp_path):
    fcn = EXPERIMENTS["fcn"]
    cell = fcn.cell("fcn4 on cifar10, mixed")
    with Records(tmp_path) as records:
        records.append(records_of(cell, [100.0], "PSNR", "fcn"))
        (table,) = tabulated(fcn, records)
    assert table.rows[0].note == ""


def test_cells_of_two_dimensions_have_a_table_for_each_measure(tmp_path):
    table3 = EXPERIMENTS["table3"]
    values = {
        "mixed, lenet, L2 α=1 β=0, GT": 28.0,
        "mixed, lenet, L2 α=1 β=0, DLG+ours": 29.0,
        "mixed, lenet, Cosine α=1 β=0, ours": 25.0,
        "mixed, lenet, exact inversion": 110.0,
        "mixed, lenet trained, exact inversion": 100.0,
    }
    with Records(tmp_path) as records:
        for name, value in values.items():
            records.append(records_of(table3.cell(name), [value], "PSNR", "table3"))
        (table,) = tabulated(table3, records)
    assert table.title.endswith(": PSNR")
    assert table.columns == ("GT", "ours", "DLG+ours", "exact")
    assert {row.cell: [e.ours for e in row.entries] for row in table.rows} == {
        "mixed, lenet, L2": ["28.00 dB", "–", "29.00 dB", "110.00 dB"],
        "mixed, lenet, Cosine": ["–", "25.00 dB", "–", "110.00 dB"],
        "mixed, lenet trained": ["–", "–", "–", "100.00 dB"],
    }
    assert all(row.note == "1 sample of the paper's 450" for row in table.rows)


@pytest.mark.parametrize("name", ["table3", "table4"])
def test_every_cell_has_its_place(name):
    experiment = EXPERIMENTS[name]
    for cell in experiment.cells:
        assert sum(cell.name.endswith(end) for end in experiment.across.values()) == 1


def judged(records):
    return {claim.text: claim.judge(records) for claim in CLAIMS}


def run_all(records, experiment, measure, value, *words):
    """A record of every cell whose name holds the words."""
    for cell in EXPERIMENTS[experiment].cells:
        if all(word in cell.name for word in words):
            records.append(records_of(cell, [value], measure, experiment))


def test_claims_are_open_until_measured_and_then_judged_by_the_records(tmp_path):
    with Records(tmp_path) as records:
        assert {claim.judge(records)[0] for claim in CLAIMS} == {Standing.OPEN}
        records.append(records_of(CELL, [True, False]))
        run_all(records, "table3", "PSNR", 28.0, ", ours")
        run_all(records, "table3", "PSNR", 28.5, ", GT")
        found = judged(records)
    standing, figure = found["above 95 % on trained and untrained networks (Table 2, head only)"]
    assert standing is Standing.REFUTED  # one cell is enough
    assert figure == "so far lowest: 50.0% (lenet, smoothed) in 1 of 16 cells"
    standing, figure = found["recovered labels serve as well as known ones (to 1 dB)"]
    assert (standing, figure) == (Standing.CONFIRMED, "-0.50 to -0.50 dB in 8 cells")


def test_nothing_is_confirmed_before_all_its_cells_are_run(tmp_path):
    table3 = EXPERIMENTS["table3"]
    with Records(tmp_path) as records:
        run_all(records, "table2", "head_exact", True, "lenet")
        run_all(records, "table3", "PSNR", 110.0, "exact inversion", "mixed")
        for method in ("ours", "GT"):
            cell = table3.cell(f"mixed, lenet, L2 α=1 β=0, {method}")
            records.append(records_of(cell, [28.0], "PSNR", "table3"))
        run_all(records, "fcn", "PSNR", 130.0, "on cifar10")  # the paper has no such cell
        found = judged(records)
    assert {standing for standing, _ in found.values()} == {Standing.OPEN}
    assert sorted(figure for _, figure in found.values() if figure) == [
        "so far +0.00 to +0.00 dB in 1 of 8 cells",
        "so far exact inversion +81.7 dB at least in 2 of 4 cells",
        "so far lowest: 100.0% (lenet, smoothed) in 4 of 16 cells",
    ]


@pytest.mark.parametrize(
    ("psnr", "standing"), [(110.0, Standing.REFUTED), (5.0, Standing.CONFIRMED)], ids=str
)
def test_an_input_that_is_computed_refutes_that_matching_is_the_only_way(tmp_path, psnr, standing):
    with Records(tmp_path) as records:
        run_all(records, "table3", "PSNR", psnr, "exact inversion")
        found = judged(records)
    assert found["inputs of a CNN can be approached by gradient matching only"][0] is standing


def test_one_hot_labels_are_said_to_be_worse_and_no_more(tmp_path):
    with Records(tmp_path) as records:
        run_all(records, "table3", "PSNR", 28.5, ", GT")
        run_all(records, "table3", "PSNR", 28.0, ", iDLG")
        found = judged(records)
    figure = "-0.50 to -0.50 dB in 8 cells"
    assert found["one-hot labels are worse than known ones"] == (Standing.CONFIRMED, figure)


def test_results_go_between_the_marks_and_nowhere_else(tmp_path):
    path = tmp_path / "page.md"
    with Records(tmp_path) as records:
        records.append(records_of(CELL, [True]))
        results = Results.of(records)
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    splice(path, results)
    splice(path, results)
    assert path.read_text() == f"before\n{BEGIN}\n{markdown(results)}{END}\nafter\n"
    path.write_text("no marks")
    with pytest.raises(FileError, match="expected"):
        splice(path, results)
