"""What is said of several solutions."""

from __future__ import annotations

import pytest
import torch

from softleak.core.results import Candidate
from softleak.labels.certify import solutions_in_words


def candidate(*labels: list[float]) -> Candidate:
    path = torch.tensor(labels)
    return Candidate(1.0, 0.9, 1.1, 0.0, True, path[0], path)


POINT, OTHER = candidate([1.0, 0.0]), candidate([0.75, 0.25], [0.750001, 0.249999])
WIDE = candidate([1.0, 0.0], [0.5, 0.5])
CASES = {
    "one point": ([POINT], "one solution, whose label is known to 0.01 in L1"),
    "two points": ([POINT, OTHER], "2 separate solutions, whose labels are up to 0.5 apart in L1"),
    "a continuum": ([WIDE], "a continuum of scalars whose labels differ by up to 1 in L1"),
    "both": (
        [OTHER, WIDE],
        "2 separate solutions, among them a continuum of scalars whose labels differ by up to 1 "
        "in L1",
    ),
}


@pytest.mark.parametrize(("fitting", "words"), CASES.values(), ids=CASES)
def test_a_continuum_is_called_one_only_if_it_is(fitting, words):
    assert solutions_in_words(fitting, 0.01, 1e-3) == words
