from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.audit import Options, audit
from softleak.core.errors import LabelError, OptionError, ShareError


class Halves:
    """A family of one's own."""

    def project(self, y: torch.Tensor) -> torch.Tensor:
        return (2 * y).round() / 2

    def __str__(self) -> str:
        return "Halves"


def test_what_a_share_says_of_its_scale_counts_if_nobody_else_does():
    share = sl.GradientShare({"w": torch.ones(2)}, scale="unknown")
    assert sl.Knowledge().of(share).scale_unknown
    assert sl.Knowledge(scale="known").of(share).scale == "known"
    assert sl.Knowledge(noise=0.1).of(share).noise == 0.1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"scale": "half"}, ShareError),
        ({"tolerance": 0.0}, LabelError),
        ({"family": sl.Smoothed}, LabelError),
        ({"noise": -1.0}, OptionError),
        ({"noise": float("nan")}, OptionError),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, error):
    with pytest.raises(error):
        sl.Knowledge(**wrong)


def test_assumptions_follow_from_what_was_known():
    unique = sl.Recovery(sl.Status.UNIQUE, "")
    assert "Halves" in sl.Knowledge(family=Halves()).assumptions(unique)[-1]
    assert "smoothed mix of two" in sl.Knowledge().assumptions(unique)[-1]
    assert "unknown positive factor" in sl.Knowledge(scale="unknown").assumptions(unique)[1]
    assert "0.2, as declared" in sl.Knowledge(noise=0.2).assumptions(unique)[2]
    noisy = sl.Recovery(sl.Status.GUESS, "", noise=0.1)
    assert "independent noise of equal size" in sl.Knowledge().assumptions(noisy)[2]
    several = sl.Recovery(sl.Status.NOT_SINGLE, "")
    assert "several samples or steps" in sl.Knowledge().assumptions(several)[0]


def test_a_report_assumes_the_family_that_was_said(trained, draw):
    from softleak.paper import data

    (sample,) = draw(data.Smoothing(), 1)
    share = sl.capture(trained, sample.x, sample.y)
    knowledge = sl.Knowledge(family=sl.Smoothed())
    report = audit(trained, share, options=Options(knowledge, inputs=False))
    assert any("family Smoothed()" in line for line in report.assumptions)
