from __future__ import annotations

import pytest

from softleak.errors import FileError, OptionError
from softleak.experiments import EXPERIMENTS, Column, Size, Unit, Verdict, tabulated
from softleak.experiments.claims import CLAIMS, Means, Standing
from softleak.experiments.summary import entry
from softleak.report.results import BEGIN, END, Results, markdown, splice
from softleak.sweep import Record, Records

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
    # Table 3: five sources in eight settings, and exact inversion in four.
    assert with_values == {
        "table1": 9, "table2": 16, "table3": 44, "table4": 20, "table5": 8, "fcn": 2
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
    assert all(row.note == "1 samples of the paper's 450" for row in table.rows)


@pytest.mark.parametrize("name", ["table3", "table4"])
def test_every_cell_has_its_place(name):
    experiment = EXPERIMENTS[name]
    for cell in experiment.cells:
        assert sum(cell.name.endswith(end) for end in experiment.across.values()) == 1


def test_claims_are_open_until_measured_and_then_judged_by_the_records(tmp_path):
    with Records(tmp_path) as records:
        assert {claim.judge(Means(records))[0] for claim in CLAIMS} == {Standing.OPEN}
        records.append(records_of(CELL, [True, False]))
        ours, known = (
            EXPERIMENTS["table3"].cell(f"mixed, lenet, L2 α=1 β=0, {method}")
            for method in ("ours", "GT")
        )
        records.append(records_of(ours, [28.0], "PSNR", "table3"))
        records.append(records_of(known, [28.5], "PSNR", "table3"))
        judged = {claim.text: claim.judge(Means(records)) for claim in CLAIMS}
    standing, figure = judged["above 95 % on trained and untrained networks (Table 2, head only)"]
    assert (standing, figure) == (Standing.REFUTED, "lowest: 50.0% (lenet, smoothed)")
    standing, figure = judged["recovered labels serve as well as known ones (to 1 dB)"]
    assert (standing, figure) == (Standing.CONFIRMED, "-0.50 to -0.50 dB in 1 cells")


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
