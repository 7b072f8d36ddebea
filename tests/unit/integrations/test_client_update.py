"""What a client says of its samples, and what follows for the audit of its update."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.core.share import LocalTraining
from softleak.guard.auditor import Auditor, ClientUpdate, Question
from softleak.paper import models

EPOCH = LocalTraining(lr=0.1, epochs=1, batch_size=4, momentum=0.9)


@pytest.mark.parametrize(
    ("samples", "client", "expected"),
    [(10, EPOCH, 10), (4, EPOCH, None), (1, EPOCH, None), (None, EPOCH, None), (10, None, None)],
)
def test_several_steps_on_several_samples(samples, client, expected):
    assert ClientUpdate(1, samples=samples, client=client).samples_of_steps == expected


def test_of_a_client_that_says_it_has_several_samples_no_other_client_is_looked_for():
    torch.manual_seed(0)
    model = models.mlp(6, (8,), 5).eval()
    x, y = torch.rand(10, 6), torch.arange(10) % 5
    sent = sl.Client(lr=0.1, epochs=1, batch_size=4, momentum=0.9).share(model, x, y)
    auditor = Auditor(model, Question(input_shape=(6,)))
    state = dict(model.state_dict())
    updates = [ClientUpdate(n, sent, 0.1, n, client=EPOCH, received=state) for n in (10, 1)]
    found = auditor.audit(1, updates).clients
    messages = [one.report.label.recovery.message for one in found if one.report is not None]
    assert ["would fit" in message for message in messages] == [False, True]
    assert all(one.report.label.recovery.status is sl.Status.NOT_SINGLE for one in found)
