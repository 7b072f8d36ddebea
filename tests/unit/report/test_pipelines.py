"""JUnit XML and SARIF, as pipelines read them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import jsonschema
import pytest

from softleak.report.junit import junit, write_junit
from softleak.report.sarif import sarif, write_sarif
from softleak.vocabulary import Leak, State

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"minLength": 1}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {
                    "required": ["uri"],
                    "properties": {"uri": {"pattern": "^[A-Za-z0-9%._~/-]+$"}},
                }
            },
        }
    },
}
RULE = {
    "required": ["id", "shortDescription", "defaultConfiguration"],
    "properties": {"shortDescription": TEXT, "fullDescription": TEXT},
}
RESULT = {
    "required": ["ruleId", "ruleIndex", "kind", "level", "message", "locations"],
    "properties": {
        "kind": {"enum": ["pass", "open", "informational", "notApplicable", "review", "fail"]},
        "level": LEVEL,
        "message": TEXT,
        "locations": {"type": "array", "items": LOCATION},
        "partialFingerprints": {"additionalProperties": {"type": "string"}},
    },
    # 3.27.10 of the standard: a result that is not a failure has no level.
    "if": {"properties": {"kind": {"const": "fail"}}},
    "else": {"properties": {"level": {"const": "none"}}},
}
# What SARIF 2.1.0 asks of the fields that are used here.
SUBSET = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results", "invocations"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name", "rules"],
                                "properties": {"rules": {"type": "array", "items": RULE}},
                            }
                        },
                    },
                    "invocations": {
                        "items": {
                            "required": ["executionSuccessful"],
                            "properties": {
                                "executionSuccessful": {"type": "boolean"},
                                "endTimeUtc": {"pattern": "Z$"},
                                "toolExecutionNotifications": {
                                    "items": {
                                        "required": ["message"],
                                        "properties": {"level": LEVEL},
                                    }
                                },
                            },
                        }
                    },
                    "results": {"type": "array", "items": RESULT},
                },
            },
        },
    },
}


@pytest.mark.parametrize("name", ["small_audit", "empty_audit"])
def test_sarif_has_what_the_standard_asks_for(name, request, tmp_path):
    audit = request.getfixturevalue(name)
    write_sarif(tmp_path / "a.sarif", audit)
    log = json.loads((tmp_path / "a.sarif").read_text())
    jsonschema.validate(log, SUBSET)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert run["invocations"][0]["executionSuccessful"] is False  # a file was refused


def test_sarif_tells_leaks_from_failures_and_from_what_was_not_attacked(small_audit):
    (run,) = sarif(small_audit)["runs"]
    kinds = {State.LEAKED: "fail", State.NO_SUCCESS: "pass", State.NOT_ATTACKED: "open"}
    expected = [kinds[r.states[leak]] for r in small_audit.reports for leak in Leak]
    assert [result["kind"] for result in run["results"]] == expected
    assert set(expected) == set(kinds.values())


def counted(text: str) -> dict[str, int]:
    """Check a JUnit file as its readers do, and count its endings."""
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
