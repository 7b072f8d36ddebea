from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from softleak.cli import app
from softleak.core.errors import DataError, FileError
from softleak.present import as_data, difference, load_audit, write_json


@pytest.fixture
def two(small_audit, tmp_path):
    """The same audit twice, the second as if a defence had hidden the first update."""
    write_json(tmp_path / "a.json", small_audit)
    later = json.loads((tmp_path / "a.json").read_text())
    states = {**later["reports"][0]["states"]}
    later["reports"][0]["states"] = dict.fromkeys(states, "attacked without success")
    later["counts"] = {leak: 0 for leak in later["counts"]}
    later["provenance"]["hashes"][0][1] = "2" * 64
    later["what_if"]["defences"][0]["did_not_succeed_from"]["label"] = 0.1
    (tmp_path / "b.json").write_text(json.dumps(later))
    return tmp_path / "a.json", tmp_path / "b.json"


def run(*arguments):
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], env={"COLUMNS": "200"})


def test_an_audit_does_not_differ_from_itself(small_audit):
    data = json.loads(json.dumps(as_data(small_audit)))
    found = difference(data, data)
    assert not found.changes
    assert not found.settings
    assert not found.worse
    assert found.words.startswith("Nothing changed")


def test_it_says_what_a_defence_ended_and_what_changed(two, small_audit):
    found = difference(*map(load_audit, two))
    ended = len(small_audit.reports[0].leaks)
    assert found.words == f"{ended} leaks were attacked again without success; 0 leaks are new."
    assert not found.worse
    assert ("model weights", "1" * 64, "2" * 64) in found.settings
    assert found.defences == (("Gaussian noise", "label", 0.5, 0.1),)


def test_new_leaks_fail_only_if_asked(two):
    better, worse = run(*two, "--fail-on-worse"), run(*reversed(two), "--fail-on-worse")
    assert (better.exit_code, worse.exit_code) == (0, 3)
    assert run(*reversed(two)).exit_code == 0
    assert "leaks were attacked again without success" in better.stdout
    assert json.loads(run(*reversed(two), "--json").stdout)["worse"] is True


def test_what_is_no_longer_attacked_is_worse(two):
    before, after = map(load_audit, two)
    after["reports"][2]["states"]["label"] = "not attacked"
    found = difference(before, after)
    assert found.worse
    assert "1 attack without success was not repeated" in found.words


def test_a_leak_that_is_not_attacked_any_more_did_not_end(two):
    before, after = map(load_audit, (two[0], two[0]))
    after["reports"][0]["states"]["label"] = "not attacked"
    found = difference(before, after)
    assert found.worse
    assert found.words == (
        "0 leaks were attacked again without success; 1 leak is not attacked any more, so nothing "
        "shows that it ended; 0 leaks are new."
    )
    two[1].write_text(json.dumps(after))
    assert run(*two, "--fail-on-worse").exit_code == 3


def test_updates_of_one_audit_alone_are_named(two):
    before, after = map(load_audit, (two[0], two[0]))
    before["reports"][0]["name"], after["reports"][0]["name"] = "old.pt", "new.pt"
    after["reports"] += [{**after["reports"][0], "name": f"{i}.pt"} for i in range(6)]
    assert difference(before, after).words.endswith(
        "Only the first audit has old.pt; it was not compared. Only the second audit has new.pt, "
        "0.pt, 1.pt, 2.pt, 3.pt and 2 more; they were not compared."
    )


def test_audits_without_an_update_in_common_are_not_compared(two):
    later = load_audit(two[1])
    later["reports"] = [{**later["reports"][0], "name": "other.pt"}]
    two[1].write_text(json.dumps(later))
    done = run(*two)
    assert done.exit_code == 2
    said = " ".join(done.stderr.split())
    assert "no update was compared" in said
    assert "the first has one, two <b> and hidden, the second other.pt" in said
    with pytest.raises(DataError, match="the first has none, the second none"):
        difference({**later, "reports": []}, {**later, "reports": []})


def test_the_help_says_which_audit_is_which():
    said = " ".join(run("--help").stdout.split())
    assert "A.JSON is the audit.json of the earlier audit, B.JSON that of the later one" in said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "reports": []}', "\x00"])
def test_a_file_that_is_no_audit_is_refused_in_a_line(text, two, tmp_path):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(FileError, match=r"c\.json"):
        load_audit(tmp_path / "c.json")
    assert run(two[0], tmp_path / "c.json").exit_code == 2
