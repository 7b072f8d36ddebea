"""What is said of a label, in full and in a table."""

from dataclasses import replace

import pytest
import torch

from softleak.audit import Audit, AuditReport, FeatureFinding, InputFinding, LabelFinding, Method
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.present.words import describe, in_a_line, in_brief, not_attacked, summary

NAMES = ("cat", "dog", "emu", "fox", "gnu")


@pytest.mark.parametrize(
    ("label", "line", "whole"),
    [
        ([1, 0, 0, 0, 0], "cat 1.0000", "cat 1.0000"),
        ([0.2] * 5, "all 5 classes alike", "all 5 classes alike"),
        ([0.1, 0.6, 0.1, 0.1, 0.1], "dog 0.6000, 4 others", "dog 0.6000, 4 others"),
        ([0.7, 0, 0, 0.3, 0], "cat 0.7000, fox 0.3000", "cat 0.7000, fox 0.3000"),
        (
            [0.4, 0.1, 0.2, 0.25, 0.05],
            "cat 0.4000, 4 others",
            "cat 0.4000, fox 0.2500, emu 0.2000, 2 others",
        ),
    ],
)
def test_a_label_in_a_line_and_in_full(label, line, whole):
    y = torch.tensor(label, dtype=torch.double)
    assert in_a_line(y, NAMES) == line
    assert describe(y, NAMES) == whole


def report_of(recovery: Recovery) -> AuditReport:
    return AuditReport(
        "", LabelFinding(recovery, 0.0), FeatureFinding.of(recovery),
        InputFinding(Method.NONE, "no way back"), Knowledge(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recovery", "brief"),
    [
        (Recovery(Status.UNIQUE, "", torch.tensor([0.0, 1.0, 0.0])), "DOG"),
        (Recovery(Status.PROBABLE, "", torch.tensor([0.7, 0.2, 0.1])), "cat"),
        (Recovery(Status.NOT_SINGLE, ""), Status.NOT_SINGLE.value),
    ],
)
def test_in_brief_it_is_the_label_the_class_or_why_there_is_none(recovery, brief):
    assert (
        in_brief(report_of(recovery), NAMES, lambda y, names: names[int(y.argmax())].upper())
        == brief
    )


PROBABLE = Recovery(Status.PROBABLE, "", torch.tensor([0.7, 0.2, 0.1]))
EXACT = Recovery(
    Status.UNIQUE, "", torch.tensor([0.0, 1.0, 0.0]), torch.ones(4), error=0.0, feature_error=0.0,
    complete=True,
)  # fmt: skip
HALVES = Recovery(Status.UNIQUE, "", torch.tensor([0.5, 0.5, 0.0]), error=0.0, complete=True)
LOST = Recovery(Status.NOT_SINGLE, "")
VAIN = Recovery(Status.NO_SOLUTION, "")
FEATURE = "the feature before the last layer"


@pytest.mark.parametrize(
    ("recoveries", "words"),
    [
        ([PROBABLE] * 3, "All 3 updates give away their class."),
        ([PROBABLE, PROBABLE, LOST], "Of 3 updates, 2 give away their class."),
        ([PROBABLE, LOST], "Of 2 updates, 1 gives away its class."),
        ([EXACT] * 2, f"All 2 updates give away their exact label and {FEATURE}."),
        ([EXACT, LOST], f"Of 2 updates, 1 gives away its exact label and 1 gives away {FEATURE}."),
        (
            [EXACT, EXACT, PROBABLE],
            "Of 3 updates, 2 give away their exact label, 3 give away their class and 2 give away "
            f"{FEATURE}.",
        ),
        (
            [HALVES, PROBABLE],
            "Of 2 updates, 1 gives away its exact label and 1 gives away its class.",
        ),
        ([VAIN] * 2, "Of 2 updates none was proved to leak: this attack did not succeed."),
        ([LOST] * 2, "Of 2 updates none was proved to leak: none was attacked."),
    ],
    ids=[
        "classes",
        "two-classes",
        "one-class",
        "labels",
        "one-label",
        "both",
        "apart",
        "none",
        "unattacked",
    ],
)
def test_many_shares_in_a_sentence(recoveries, words):
    said = summary(Audit(tuple(map(report_of, recoveries))))
    assert said.startswith(words)
    assert ("no label of one was attacked" in said) == (LOST in recoveries)


@pytest.mark.parametrize(
    ("recoveries", "words"),
    [
        ([EXACT], " Input: not attacked (no way back)."),
        ([EXACT, LOST], " Input of 2 of 2 updates: not attacked (no way back)."),
    ],
    ids=["one", "two"],
)
def test_inputs_nobody_attacked_are_counted(recoveries, words):
    assert not_attacked(Audit(tuple(map(report_of, recoveries)))) == words


def test_many_shares_whose_inputs_nobody_asked_for_are_not_called_unharmed():
    unasked = replace(report_of(EXACT), input=InputFinding(Method.NONE, "", asked=False))
    assert "Not attacked: input." in summary(Audit((unasked, unasked)))
    assert "Not attacked: input." not in summary(Audit((report_of(EXACT),) * 2))


def test_a_report_prints_in_a_few_lines():
    report = replace(report_of(EXACT), name="<a>")
    assert str(report).startswith("<a>: This update gives away")
    assert len(str(report).splitlines()) <= 4
    assert "&lt;a&gt;" in report._repr_html_()
