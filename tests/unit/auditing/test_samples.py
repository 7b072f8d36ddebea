"""What an audit says of the samples of a batch: labels, inputs, attacks, certificates, advice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import Audit, Leak, Options
from softleak.audit.report import Method, Outcome
from softleak.core.knowledge import Knowledge
from softleak.paper import data
from softleak.present import dossier_data
from softleak.present.advice import advice
from softleak.present.catalogue import endings
from softleak.present.words import headline, input_words

SHAPE = (3, 6, 6)


@pytest.fixture(scope="module")
def pair():
    """A fully connected network with ReLU, two inputs, and the audit of their mean gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(108, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10)
    )
    x, y = torch.rand(2, *SHAPE), torch.eye(10)[[3, 6]]
    share = sl.capture(model, x, y)
    return x, sl.audit(model, share, options=Options(Knowledge(samples=2), views=False))


def test_inputs_are_given_where_the_last_layer_proves_the_scale_and_the_first_tells_them(pair):
    x, report = pair
    assert Leak.INPUT in report.leaks
    assert report.samples.inputs == 2
    found = torch.stack(report.samples.pictures).reshape(2, -1)
    ranges = x.double().reshape(2, -1)
    assert float(torch.cdist(ranges, found).amin(1).max()) < 1e-3
    said = "the exact labels, the features before the last layer and the inputs of both samples"
    assert said in headline(report)


def test_the_finding_on_labels_names_those_of_every_sample(pair):
    label = pair[1].label
    assert label.known
    assert label.proved == "UNIQUE"
    assert {one.class_index for one in label.samples} == {3, 6}
    assert len(repr(pair[1]).splitlines()) == 2
    assert len(repr(Audit((pair[1],)))) < 400


def test_the_catalogue_says_that_a_batch_was_attacked(pair):
    ended = {attack: outcome for attack, (outcome, _) in endings(pair[1]).items()}
    for name in ("batch-samples", "batch-inputs", "feature", "class-composition"):
        assert ended[name] is Outcome.SUCCEEDED
    for name in ("label-scalar", "input-inversion", "input-gauss-newton", "input-matching"):
        assert ended[name] is Outcome.NOT_APPLICABLE


def test_a_dossier_certifies_every_sample_and_warns_of_batching(pair):
    audit = Audit((pair[1],))
    stated = [(c["of"], c["kind"]) for c in dossier_data(audit)["certificates"]]
    assert stated.count(("label", "proof")) == 2
    assert {("feature", "proof"), ("input", "proof"), ("composition", "proof")} <= set(stated)
    warned = [line for line in advice(audit) if "batching" in line]
    assert warned == [
        "Do not rely on batching: of 2 samples in 1 mixed update the labels of 2 and the inputs of "
        "2 were proved."
    ]
    reasons = [r["why"] for a in dossier_data(audit)["attacks"] for r in a["reasons"]]
    assert reasons
    assert not any(".." in why for why in reasons)


@pytest.fixture(scope="module")
def smooth_pair():
    """A convolutional network without ReLUs, two inputs, and the audit of their mean gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(108, 8),
    )
    x, y = torch.rand(2, 1, 6, 6), 0.9 * torch.eye(8)[[2, 5]] + 0.1 / 8
    share = sl.capture(model, x, y)
    options = Options(Knowledge(samples=2), views=False, seconds=120.0)  # seconds if undisturbed
    return x, sl.audit(model, share, options=options)


def test_the_inputs_of_a_batch_of_a_smooth_network_are_solved_for_together(smooth_pair):
    x, report = smooth_pair
    assert report.input.method == Method.SOLVING
    assert report.samples.proved_inputs == report.samples.inputs == 2
    found = torch.stack(report.samples.pictures).reshape(2, -1)
    assert float(torch.cdist(x.double().reshape(2, -1), found).amin(1).max()) < 1e-3
    assert "the inputs of both samples" in headline(report)
    assert "Gauss–Newton" in input_words(report)
    stated = [(c["of"], c["kind"]) for c in dossier_data(Audit((report,)))["certificates"]]
    assert stated.count(("input", "proof")) == 1
    ended = {attack: outcome for attack, (outcome, _) in endings(report).items()}
    assert ended["input-gauss-newton"] is Outcome.SUCCEEDED
    assert ended["input-inversion"] is ended["batch-inputs"] is Outcome.NOT_APPLICABLE


def test_matched_inputs_of_a_batch_are_candidates_and_no_proof(trained, draw):
    samples = draw(data.Smoothing(), 2)
    x = torch.stack([s.x.reshape(3, 32, 32) for s in samples])
    share = sl.capture(trained, x, torch.stack([s.y.flatten() for s in samples]))
    options = Options(Knowledge(samples=2), views=False, seconds=1.0)
    report = sl.audit(trained, share, options=options)
    assert report.input.method == Method.MATCHING
    assert len(report.samples.pictures) == 2
    assert report.samples.proved_inputs == 0
    assert Leak.INPUT not in report.unattacked
    ended = {attack: outcome for attack, (outcome, _) in endings(report).items()}
    assert ended["input-matching"] is Outcome.of(report.input.leaked)
