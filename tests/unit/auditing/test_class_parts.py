"""Parts of the classes behind local training: in an audit, and in a round of a federation."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.audit import Options, audit
from softleak.audit.several import parts_of_classes
from softleak.core.knowledge import Knowledge
from softleak.core.share import UNKNOWN, LocalTraining
from softleak.guard.auditor import ClientUpdate, read_several
from softleak.labels.local.proportions import StandIns
from softleak.paper import models

SAMPLES = 40
CLIENT = sl.Client(lr=0.02, epochs=1, batch_size=16, momentum=0.9)


@pytest.fixture(scope="module")
def federation():
    """A model, public images of five blobs, and the update of a client with two of them."""
    torch.manual_seed(0)
    centres, classes = torch.randn(5, 8), torch.arange(100) % 5
    public = StandIns(centres[classes] + torch.randn(100, 8) / 2, classes)
    model = models.mlp(8, (16,), 5).eval()
    own = torch.tensor([0] * 30 + [3] * 10)
    share = CLIENT.share(model, centres[own] + torch.randn(SAMPLES, 8) / 2, own)
    return sl.Subject.of(model, (8,)), public, share


def test_an_audit_states_parts_with_intervals(federation):
    subject, public, share = federation
    options = Options(Knowledge(samples=SAMPLES), inputs=False, stand_ins=public)
    found = audit(subject.model, share, options=options).composition
    assert found.attacked
    assert "parts of the classes, with 90 % intervals: class 0 " in found.message
    assert "the images given" in found.message


def test_a_round_states_them_where_the_client_is_known(federation):
    subject, public, share = federation
    update = ClientUpdate(1, share, CLIENT.lr, SAMPLES, client=CLIENT.training)
    report = audit(subject.model, share, options=Options(inputs=False))
    assert "parts of the classes" not in report.composition.message
    told = read_several(subject, update, report, public).composition
    assert "parts of the classes, with 90 % intervals: class 0 " in told.message


@pytest.mark.parametrize(
    ("samples", "training"),
    [(None, CLIENT.training), (1, CLIENT.training), (SAMPLES, LocalTraining(lr=UNKNOWN)),
     (SAMPLES, None)],
)  # fmt: skip
def test_nothing_is_stated_where_the_client_cannot_be_run(federation, samples, training):
    subject, public, share = federation
    sent = sl.GradientShare(dict(share), (8,), made_by=training)
    assert parts_of_classes(subject, sent, samples, public) == ""
    assert parts_of_classes(subject, share, SAMPLES, None) == ""


def test_classes_without_an_image_are_said(federation):
    subject, public, share = federation
    few = StandIns(public.images[:3], public.classes[:3])
    assert "were not estimated" in str(parts_of_classes(subject, share, SAMPLES, few))
