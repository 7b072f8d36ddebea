"""What is said of a label, in full and in a table."""

import pytest
import torch

from softleak.audit import AuditReport, FeatureFinding, InputFinding, LabelFinding, Method
from softleak.audit.words import describe, in_a_line, in_brief
from softleak.results import Recovery, Status

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


@pytest.mark.parametrize(
    ("recovery", "brief"),
    [
        (Recovery(Status.UNIQUE, "", torch.tensor([0.0, 1.0, 0.0])), "DOG"),
        (Recovery(Status.PROBABLE, "", torch.tensor([0.7, 0.2, 0.1])), "cat"),
        (Recovery(Status.NOT_SINGLE, ""), Status.NOT_SINGLE.value),
    ],
)
def test_in_brief_it_is_the_label_the_class_or_why_there_is_none(recovery, brief):
    report = AuditReport(
        "", LabelFinding(recovery, 0.0), FeatureFinding.of(recovery),
        InputFinding(Method.NONE, ""), (),
    )  # fmt: skip
    assert in_brief(report, NAMES, lambda y, names: names[int(y.argmax())].upper()) == brief
