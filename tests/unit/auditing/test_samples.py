"""What an audit says of the samples of a batch: labels, inputs, attacks, certificates, advice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.auditing import Audit, Leak, Options
from softleak.auditing.advice import advice
from softleak.auditing.attack_outcome import Outcome
from softleak.auditing.catalogue import attempts
from softleak.auditing.headline import headline
from softleak.knowledge import Knowledge
from softleak.report import dossier_data

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


def test_the_catalogue_says_that_a_batch_was_attacked(pair):
    ended = {one.attack: one.outcome for one in attempts(pair[1])}
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
    assert not any(why.endswith(".") for why in reasons)
