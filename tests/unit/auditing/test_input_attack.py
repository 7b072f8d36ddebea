import signal
import threading

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import AuditReport, FeatureFinding, InputFinding, LabelFinding, Method, Options
from softleak.audit.input_attacks import recover_input
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.present.words import input_words


class Branching(nn.Module):
    """A skip connection, which nothing walks back through, and a kink: nothing can be solved."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6 * 36, 5)

    def forward(self, x):
        x = torch.sigmoid(self.first(x)).clamp(0.0, 0.99)
        return self.head((x + torch.sigmoid(self.second(x))).flatten(1))


@pytest.fixture
def case():
    torch.manual_seed(0)
    model, x = Branching(), torch.rand(1, 6, 6)
    share = sl.capture(model, x, torch.tensor([0.1, 0.6, 0.1, 0.1, 0.1]))
    return Subject.of(model, (1, 6, 6)), share, sl.recover_label(model, share)


def said(case, found: InputFinding) -> str:
    recovery = case[-1]
    return input_words(
        AuditReport(
            "", LabelFinding(recovery, 0.0), FeatureFinding.of(recovery), found, Knowledge()
        )
    )


def test_what_cannot_be_inverted_is_matched_and_called_a_candidate(case):
    found = recover_input(*case, Options(seconds=2.0))
    assert found.method == Method.MATCHING
    assert 0 <= found.misfit < 1
    assert found.pixels.shape == (1, 6, 6)
    assert found.seconds < 60  # of wall time, of two asked for: the machine may be crowded
    assert found.agreement is not None
    assert found.leaked == (found.agreement >= 20 and found.misfit <= 0.2)
    assert ("recognisable" in said(case, found)) == found.leaked


def test_without_time_it_is_left_at_why_it_cannot_be_inverted(case):
    found = recover_input(*case, Options(seconds=0.0))
    assert found.method == Method.NONE
    assert said(case, found).startswith("not attacked: ")


def test_the_audit_passes_the_time_on(case):
    subject, share, _ = case
    report = sl.audit(subject.model, share, options=Options(seconds=1.0))
    assert report.input.method == Method.MATCHING


def test_an_interruption_ends_the_audit_and_is_no_answer(case, interruptible):
    recover_input(*case, Options(seconds=0.1))  # so that no import is interrupted
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        recover_input(*case, Options(seconds=60.0))
    timer.join()


def test_what_can_be_neither_inverted_nor_matched_says_why():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 5)).train()
    share = sl.capture(model, torch.rand(1, 6, 6), 2)
    found = recover_input(
        Subject.of(model, (1, 6, 6)), share, sl.recover_label(model, share), Options(seconds=2.0)
    )
    assert found.method == Method.NONE
    assert "train mode" in found.message


@pytest.mark.parametrize(
    ("method", "leaked"), [(Method.EMBEDDING, True), (Method.INVERSION, False)]
)
def test_open_directions_hide_an_image_only_if_its_prediction_does_not_cover_them(method, leaked):
    found = InputFinding(method, "", torch.zeros(3, 4, 4), psnr_predicted=43.0, determined=False)
    assert found.leaked is leaked
    assert not InputFinding(method, "", torch.zeros(3, 4, 4), 12.0, determined=True).leaked
