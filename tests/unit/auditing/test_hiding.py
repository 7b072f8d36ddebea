"""Which noise hides a label, in an audit and wherever an audit is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

import softleak as sl
from softleak.audit import Audit, NamedShare, Options, Truth
from softleak.audit.leaks import Leak
from softleak.audit.run import audit_shares
from softleak.audit.sweeps import Point, Rate, Response, WhatIf
from softleak.audit.whatif import Target, hiding_of
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.defenses import GaussianNoise
from softleak.paper import data
from softleak.present.bounds import hiding_words, zones
from softleak.present.dossier import dossier_data, dossier_page
from softleak.present.machine import as_data
from softleak.present.page import render
from softleak.present.words import summary

POINTS = tuple(Point(s, {Leak.CLASS: Rate(n, 4)}) for s, n in ((0.1, 4), (1.0, 1), (10.0, 0)))
TRIED = WhatIf((Response("Gaussian noise", "standard deviation", POINTS, {}),), 1, 4)


@pytest.fixture(scope="module")
def defended(trained, draw):
    """An update behind noise that is declared, with its truth, and what hides its label."""
    (sample,) = draw(data.Hard(), 1)
    share = GaussianNoise(1.0, 0)(sl.capture(trained, sample.x, sample.y)).expecting(1.0)
    options = Options(Knowledge(noise=1.0), inputs=False, normalisation=data.CIFAR10_NORM)
    named = NamedShare("one", share, Truth(sample.y, sample.x))
    subject = Subject.of(trained, (3, 32, 32))
    (report,) = audit_shares(subject, [named], options)
    hiding = hiding_of(subject, Target.of(named, report), options, 0.2, 0.9)
    return Audit((report,), hiding=(("one", hiding),), what_if=TRIED)


def test_no_affordable_noise_hides_a_label_and_the_headline_says_so(defended):
    ((_, hiding),) = defended.hiding
    assert hiding.proof.noise > 10
    assert hiding.cosine < 0.05
    assert hiding.declared.success > 0.99
    assert "No noise that leaves a cosine of 0.9 hides the label" in summary(defended)
    assert f"{hiding.clients:,} clients or more" in summary(defended)


def test_three_zones_lie_on_one_axis(defended):
    found = zones(defended)
    assert found["leaks"] == "1"
    assert float(found["hidden"]) > 10
    assert "factor" in found["factor"]
    assert zones(replace(defended, hiding=())) is None


def test_page_dossier_and_files_state_the_bound_with_what_it_rests_on(defended):
    ((_, hiding),) = defended.hiding
    for page in (render(defended), dossier_page(defended)):
        assert "proved hidden" in page
        assert "drawn once, of a size that was not chosen by looking at the update" in page
    kinds = [one["kind"] for one in dossier_data(defended)["certificates"]]
    assert kinds.count("bound") == 2
    (told,) = as_data(defended)["hiding"]
    assert told["proof"]["noise"] == hiding.proof.noise
    assert len(list(hiding_words(defended))) == 2


def test_a_sample_that_is_not_known_has_no_bound(trained, draw, defended):
    (sample,) = draw(data.Hard(), 1)
    subject, options = Subject.of(trained, (3, 32, 32)), Options(inputs=False)
    named = NamedShare("one", sl.capture(trained, sample.x, sample.y))
    (report,) = audit_shares(subject, [named], options)
    assert hiding_of(subject, Target.of(named, report), options, 0.2, 0.9) is None
    other = NamedShare("one", sl.capture(trained, sample.x, sample.y).scaled(2.0))
    told = Target.of(replace(other, truth=Truth(sample.y, sample.x)), report)
    assert hiding_of(subject, told, options, 0.2, 0.9) is None
