from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from softleak.audit.leaks import Leak, Severity
from softleak.audit.report import Audit, Refusal
from softleak.audit.sweeps import Point, Rate, Response, WhatIf
from softleak.core.fit import NOT_FITTED
from softleak.core.vocabulary import State
from softleak.present.advice import advice, defence_words, severity_of_audit, worst
from softleak.present.page import untried_words


def response(name, hits, stops, unit="part kept", settings=(1.0, 0.5)):
    points = [
        Point(s, {leak: Rate(n, 8) for leak in (Leak.LABEL, Leak.INPUT)})
        for s, n in zip(settings, hits, strict=True)
    ]
    return Response(name, unit, tuple(points), stops)


def test_the_worst_decides_and_what_is_not_known_is_not_nothing():
    assert worst([Severity.LOW, Severity.HIGH, Severity.NONE_FOUND]) is Severity.HIGH
    assert worst([Severity.NOT_KNOWN, Severity.NONE_FOUND]) is Severity.NOT_KNOWN
    assert severity_of_audit(Audit(())) is Severity.NOT_KNOWN
    assert severity_of_audit(Audit((), (Refusal("a", "b"),))) is Severity.NOT_KNOWN


def test_only_defences_that_end_every_attack_are_named_at_their_strongest_end():
    every = {Leak.LABEL: 0.9, Leak.INPUT: 0.5}
    noise = response("Gaussian noise", (8, 0), every)
    tried = WhatIf((noise, response("Clipping", (8, 8), {Leak.LABEL: 1.0})), 4, 2)
    words = defence_words(tried, frozenset(every))
    assert "Gaussian noise (part kept 0.5 or less)" in words
    assert "Clipping" not in words
    assert "up to 32 %" in words
    assert "not claimed" not in words
    unsure = replace(tried, responses=(replace(noise, unclaimed=2),))
    assert "Behind Gaussian noise some labels were" in defence_words(unsure, frozenset(every))
    none = replace(tried, responses=tried.responses[1:])
    assert defence_words(none, frozenset(every)).startswith("No defence that was tried")


@pytest.mark.parametrize("name", ["Pruning", "int8", "NVFlare SVTPrivacy, learning rate 0.1"])
def test_no_defence_is_recommended_that_no_attack_was_made_for(name):
    every = {Leak.LABEL: 0.9}
    words = defence_words(WhatIf((response(name, (8, 0), every),), 4, 2), frozenset(every))
    assert words.startswith("No defence that was tried")
    assert f"failed behind {name} too, but none was made for that" in words


def test_the_terms_of_a_setting_stand_behind_its_value():
    private = response("DP-SGD", (8, 0), {Leak.LABEL: 100.0}, "ε", (1000.0, 10.0))
    private = replace(private, terms="δ = 10⁻⁵, sampling rate 1")
    words = defence_words(WhatIf((private,), 4, 2), frozenset({Leak.LABEL}))
    assert "DP-SGD, ε of 100 or less (δ = 10⁻⁵, sampling rate 1). With" in words


def test_what_if_is_advised_where_it_tries_something():
    mixed = {"leaks": frozenset({Leak.COMPOSITION}), "unattacked": frozenset(), "telling": False}
    mixed["fit"] = NOT_FITTED
    mixed["samples"] = SimpleNamespace(proved=())
    states = dict.fromkeys(Leak, State.NO_SUCCESS) | {Leak.COMPOSITION: State.LEAKED}
    audit = Audit((SimpleNamespace(**mixed, states=states),))
    said = list(advice(audit))
    assert not any("--what-if" in words for words in said)
    assert any("hidden by noise or secure aggregation" in words for words in said)
    assert untried_words(audit).startswith("No label, feature or input was recovered; defences")
    telling = Audit((SimpleNamespace(**mixed | {"telling": True}, states=states),))
    assert any("--what-if" in words for words in advice(telling))
    assert "--what-if" in untried_words(telling)
    assert untried_words(Audit(())).startswith("No attack succeeded")


def test_nothing_audited_is_said_so():
    assert next(advice(Audit(()))).startswith("Nothing was audited")
