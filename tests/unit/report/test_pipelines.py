"""JUnit XML and SARIF, as pipelines read them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import jsonschema
import pytest
from jsonschema.protocols import Validator
from junitparser import JUnitXml

from softleak.audit.leaks import Leak
from softleak.core.vocabulary import State
from softleak.present.machine import junit, sarif, write_junit, write_sarif
from tests.unit.report.sarif_schema import official_schema


@pytest.fixture(scope="module")
def standard() -> Validator:
    """The official schema of SARIF 2.1.0, formats included."""
    kind = jsonschema.Draft7Validator
    kind.check_schema(official_schema())
    return kind(official_schema(), format_checker=kind.FORMAT_CHECKER)


@pytest.mark.parametrize("name", ["small_audit", "empty_audit"])
def test_sarif_follows_the_official_schema(name, request, tmp_path, standard):
    audit = request.getfixturevalue(name)
    write_sarif(tmp_path / "a.sarif", audit)
    log = json.loads((tmp_path / "a.sarif").read_text())
    standard.validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert run["invocations"][0]["executionSuccessful"] is False  # a file was refused


@pytest.mark.parametrize(
    ("field", "wrong"), [("kind", "leaked"), ("level", "high"), ("message", {}), ("strange", 1)]
)
def test_the_official_schema_notices_mistakes(small_audit, standard, field, wrong):
    log = sarif(small_audit)
    assert standard.is_valid(log)
    log["runs"][0]["results"][0][field] = wrong
    assert not standard.is_valid(log)


def test_a_result_that_is_no_failure_has_no_level(small_audit):
    """The schema does not say so, but 3.27.10 of the standard does."""
    for result in sarif(small_audit)["runs"][0]["results"]:
        assert (result["level"] == "none") == (result["kind"] != "fail")


def test_sarif_tells_leaks_from_failures_and_from_what_was_not_attacked(small_audit):
    (run,) = sarif(small_audit)["runs"]
    kinds = {State.LEAKED: "fail", State.NO_SUCCESS: "pass", State.NOT_ATTACKED: "open"}
    expected = [kinds[r.states[leak]] for r in small_audit.reports for leak in Leak]
    assert [result["kind"] for result in run["results"]] == expected
    assert set(expected) == set(kinds.values())


def counted(text: str) -> dict[str, int]:
    """Check a JUnit file as its readers do, and count its endings."""
    read = JUnitXml.fromstring(text.encode())  # as pipelines read it
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    cases = suite.findall("testcase")
    assert len(cases) == len(suite) == int(suite.get("tests"))
    ends = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: len(suite.findall(f"testcase/{tag}")) for name, tag in ends.items()}
    for name, count in counts.items():
        assert int(suite.get(name)) == int(root.get(name)) == count
    for case in cases:
        assert case.get("classname")
        assert case.get("name")
        assert float(case.get("time")) >= 0
        assert len(case) <= 1
    assert (read.tests, read.failures, read.errors, read.skipped) == (len(cases), *counts.values())
    (held,) = read
    ended = [bool(case.result) for case in held]
    assert ended == [bool(len(case)) for case in cases]
    return {"tests": len(cases), **counts}


def test_junit_counts_every_kind_of_leak_of_every_update(small_audit, tmp_path):
    states = [s for r in small_audit.reports for s in r.states.values()]
    write_junit(tmp_path / "a.xml", small_audit, frozenset())
    assert counted((tmp_path / "a.xml").read_text()) == {
        "tests": 16,
        "failures": states.count(State.LEAKED),
        "errors": 1,  # the file that was refused
        "skipped": states.count(State.NOT_ATTACKED),
    }


def test_junit_of_a_gate_fails_as_the_exit_code_does(small_audit):
    gated = counted(junit(small_audit, frozenset({Leak.INPUT})))
    assert gated == {"tests": 4, "failures": 0, "errors": 4, "skipped": 0}
    assert counted(junit(small_audit, frozenset({Leak.LABEL})))["failures"] == 1
