from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from softleak.present import dossier_data, write_dossier
from softleak.present.catalogue import CATALOGUE

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "schema" / "dossier.schema.json").read_text()
)


@pytest.mark.parametrize("name", ["small_audit", "empty_audit"])
def test_the_dossier_follows_its_published_schema(name, request, tmp_path):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    audit = request.getfixturevalue(name)
    write_dossier(tmp_path, audit)
    read = json.loads((tmp_path / "dossier.json").read_text())
    jsonschema.validate(read, SCHEMA)
    assert read == json.loads(json.dumps(dossier_data(audit)))


def test_the_schema_refuses_a_dossier_without_its_threat_model(small_audit):
    data = json.loads(json.dumps(dossier_data(small_audit)))
    del data["threat_model"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_every_attack_is_named_with_its_outcome_and_why(small_audit):
    data = dossier_data(small_audit)
    assert [attack["id"] for attack in data["attacks"]] == [attack.id for attack in CATALOGUE]
    for attack in data["attacks"]:
        assert sum(attack["outcomes"].values()) == 3
        assert all(reason["why"] for reason in attack["reasons"])
    assert len(data["attacks"]) == len(CATALOGUE)
    by_id = {attack["id"]: attack["outcomes"] for attack in data["attacks"]}
    label = by_id["label-scalar"]
    assert label["succeeded"] == label["tried without success"] == label["not applicable"] == 1
    assert by_id["class-composition"]["succeeded"] == 1
    assert by_id["input-inversion"]["not carried out"] == 3  # nobody asked for inputs


def test_it_says_who_what_and_how_sure(small_audit):
    data = dossier_data(small_audit)
    assert data["auditor"] == "A. Lead"
    assert data["date"].startswith("2026-11-17")
    assert [u["sha256"] for u in data["audited"]["updates"]] == [
        r.fingerprint for r in small_audit.reports
    ]
    assert data["certificates"][0]["kind"] == "proof"
    (curve,) = data["defences"]["curves"]
    low, high = curve["points"][-1]["interval"]
    assert low == 0
    assert high == pytest.approx(0.49, abs=0.01)
    risk = " ".join(data["residual_risk"])
    assert "Input: not attacked in 3, of which nothing is known." in risk
    assert "truncated" not in risk
    assert "1 files could not be audited" in risk


def test_the_printed_dossier_escapes_names_and_has_every_section(small_audit, tmp_path):
    write_dossier(tmp_path, small_audit)
    page = (tmp_path / "dossier.html").read_text()
    assert "two &lt;b&gt;" in page
    assert "two <b>" not in page
    for section in dossier_data(small_audit)["mapping"]:
        assert f"<h2>{section['section']}</h2>" in page
    assert "built-in method" not in page
