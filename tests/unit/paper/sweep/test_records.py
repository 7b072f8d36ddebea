from __future__ import annotations

import csv
import io
import sqlite3

import pytest

from softleak.core.errors import FileError
from softleak.paper.sweep import Record, Records, local, missing, numbers, sweep
from tests.unit.paper.sweep.computes import Sums, pieces


def record(sample: int, **measures) -> Record:
    return Record("try", "cell", 0, sample, measures)


def test_records_come_back_as_they_were(tmp_path):
    kept = [record(1, error=0.1 + 0.2, exact=True, status="UNIQUE", L1=None), record(0, error=1.0)]
    with Records(tmp_path) as records:
        records.append(kept)
    with Records(tmp_path) as records:
        assert records.of("try", "cell") == kept[::-1]


def test_a_piece_is_kept_whole_or_not_at_all(tmp_path):
    with Records(tmp_path) as records:
        records.append([record(1)])
        with pytest.raises(FileError, match="another run"):
            records.append([record(0), record(1)])
        assert [r.sample for r in records.of("try", "cell")] == [1]


def test_nothing_infinite_is_recorded(tmp_path):
    with Records(tmp_path) as records, pytest.raises(ValueError, match="JSON"):
        records.append([record(0, error=float("inf"))])


def test_records_of_other_data_are_not_mixed(tmp_path):
    with Records(tmp_path) as records:
        records.declare("try", "cell", {"files": {"x": "1"}, "seeds": 1})
        records.declare("try", "cell", {"files": {"x": "1"}, "seeds": 1})
        with pytest.raises(
            FileError, match=r"come from other files \{'x': '1'\}, now \{'x': '2'\}\."
        ):
            records.declare("try", "cell", {"files": {"x": "2"}, "seeds": 1})


def test_what_differs_is_named_and_nothing_else(tmp_path):
    then = {"code": "abc", "versions": {"torch": "2.4", "numpy": "2"}, "shortfall": "200 images"}
    now = {"code": "def", "versions": {"torch": "2.5", "numpy": "2"}, "shortfall": ""}
    with Records(tmp_path) as records:
        records.declare("try", "cell", then)
        with pytest.raises(FileError) as refused:
            records.declare("try", "cell", now)
    assert (
        "come from other code abc, now def; shortfall 200 images, now none; "
        "versions {'torch': '2.4'}, now {'torch': '2.5'}. Give another --out"
    ) in str(refused.value)


@pytest.mark.parametrize("page", [3, 4], ids=["the records' root", "a page of records"])
def test_a_damaged_base_is_said(tmp_path, page):
    with Records(tmp_path) as records:
        records.append([record(i, note="x" * 500) for i in range(100)])
    path = tmp_path / "records.sqlite"
    held = bytearray(path.read_bytes())
    held[page * 4096 : (page + 5) * 4096] = b"\xff" * 5 * 4096
    path.write_bytes(held)
    with (
        Records(tmp_path) as records,
        pytest.raises(FileError, match=r"are damaged .*malformed.*delete records\.sqlite"),
    ):
        records.of("try", "cell")


def test_a_base_that_is_none_is_said(tmp_path):
    (tmp_path / "records.sqlite").write_text("no base, but long enough to look like one" * 99)
    with pytest.raises(FileError, match="not a database"):
        Records(tmp_path)


@pytest.mark.parametrize(
    "use",
    [
        lambda records: records.declare("try", "cell", {}),
        lambda records: records.provenance("try", "cell"),
        lambda records: records.of("try", "cell"),
        lambda records: records.append([record(0)]),
        lambda records: records.export("try"),
    ],
    ids=["declare", "provenance", "of", "append", "export"],
)
def test_a_base_in_use_is_said(tmp_path, use):
    with Records(tmp_path) as records:
        records._base.execute("PRAGMA busy_timeout = 0")
        other = sqlite3.connect(tmp_path / "records.sqlite", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(FileError, match=r"cannot be used now .*locked.*another run"):
            use(records)
        other.close()
        use(records)


def test_tables_are_written_in_utf8_wherever_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "text_encoding", lambda encoding, _=2: encoding or "ascii")
    with Records(tmp_path) as records:
        records.declare("try", "α=1 β=0", {})
        records.append([Record("try", "α=1 β=0", 0, 0, {})])
        path = records.export("try")
    assert "α=1 β=0" in path.read_text("utf-8")


def test_a_sweep_computes_what_is_missing_and_nothing_else(tmp_path):
    done = []
    with Records(tmp_path) as records:
        sweep(Sums(), pieces(3), records, local)
        rest = missing(pieces(5), records)
        assert [piece.samples for piece in rest] == [(3,), (4,)]
        assert sweep(Sums(), rest, records, local, done.append) == []
        assert done == rest
        assert [r.sample for r in records.of("try", "cell")] == [0, 1, 2, 3, 4]


def test_records_can_be_queried_and_exported(tmp_path):
    with Records(tmp_path) as records:
        records.declare("try", "cell", {})
        records.append([record(0, error=0.25), record(1, error=0.75, note="x")])
        path = records.export("try")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["error"] for row in rows] == ["0.25", "0.75"]
    assert rows[0]["note"] == ""
    query = "SELECT avg(json_extract(measures, '$.error')) FROM records"
    assert sqlite3.connect(tmp_path / "records.sqlite").execute(query).fetchone() == (0.5,)


def test_what_is_no_number_is_left_out_of_a_measures_values():
    held = [record(0, x=1), record(1, x=True), record(2, x=None), record(3, x="1"), record(4)]
    assert numbers([*held, record(5, x=0.5)], "x") == [1.0, 1.0, 0.5]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot keep records"):
        Records(tmp_path / "file")
