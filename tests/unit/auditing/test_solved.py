"""An audit of a smooth network that branches: the image is proved and counts as leaked."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

import softleak as sl
from benchmarks.gauss_newton_wrong import SHAPE, SmallResidual
from softleak.audit import input_attacks as solved
from softleak.audit.input_attacks import recover_input
from softleak.audit.options import Options
from softleak.audit.report import Method, Outcome
from softleak.core.subject import Subject
from softleak.matching.choose import InputSearch
from softleak.matching.gauss_newton import Certificate
from softleak.matching.gauss_newton.certificate import Spread
from softleak.matching.gauss_newton.descent import DampedDescent
from softleak.present.page import FRAME, curves


class Absolute(nn.Module):
    """A unit that switches."""

    def forward(self, x):
        return x.abs()


def smooth(act):
    torch.manual_seed(0)
    model = SmallResidual(act)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        for _ in range(20):
            model.train()(torch.randn(32, *SHAPE))
    model.eval()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SHAPE, generator=generator)
    y = torch.randn(4, generator=generator).softmax(0)
    return model, x, y


def attacked(act, seconds):
    model, x, y = smooth(act)
    share = sl.capture(model, x, y)
    recovery = sl.recover_label(model, share)
    subject = Subject.of(model, SHAPE)
    return x, recover_input(subject, share, recovery, Options(seconds=seconds))


def test_a_proved_image_leaks_with_the_quality_that_it_predicts():
    x, found = attacked(nn.SiLU, 60.0)
    assert found.method == Method.SOLVING, found.message
    assert found.leaked
    assert found.certificate.proved
    off = found.pixels - found.to_pixels.pixels(x)
    psnr = -10 * math.log10(float(off.square().mean()))
    assert psnr > 80
    assert abs(psnr - found.psnr_predicted) < 12


def test_reconstruct_takes_the_way_of_the_audit_and_names_it():
    model, x, y = smooth(nn.SiLU)
    share = sl.capture(model, x, y)
    found = sl.reconstruct(model, share, sl.recover_label(model, share))
    assert found.proved, found.message
    assert found.way is sl.matching.Way.SOLVING
    audited = attacked(nn.SiLU, 60.0)[1]
    same = audited.to_pixels.pixels(found.input) - audited.pixels
    assert float(same.abs().max()) < 1e-4
    chain = nn.Sequential(nn.Flatten(), nn.Linear(72, 90), nn.Tanh(), nn.Linear(90, 4))
    sent = sl.capture(chain, x, y)
    computed = sl.reconstruct(chain, sent, sl.recover_label(chain, sent))
    assert computed.way in (sl.matching.Way.DIVISION, sl.matching.Way.WALK)
    assert float((computed.input - x).abs().max()) < 1e-3


def test_a_direction_that_is_left_open_counts_with_the_spread_of_images():
    spread = Spread(
        torch.tensor([0.1, math.inf]), torch.tensor([0.1, math.inf]), torch.eye(2), label_error=0.0
    )
    expected = torch.tensor([(1 / (100 + 1 / 9)) ** 0.5, 3.0])
    assert torch.allclose(spread.within(3.0), expected)
    assert spread.below(1.0).error.tolist() == pytest.approx([0.1, 0.0])
    told = Certificate(False, explained=True, error=spread.error, expected=expected)
    assert told.psnr_predicted() == pytest.approx(-10 * math.log10(float(expected.square().mean())))


def test_the_page_of_a_proved_image_shows_how_it_was_found(tmp_path):
    model, x, y = smooth(nn.SiLU)
    report = sl.audit(model, sl.capture(model, x, y), options=Options(seconds=60.0))
    assert report.shows_input
    assert any("far away" in said for said in report.assumptions)
    report.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "misfit of the update, in units of rounding" in page
    assert "Gauss–Newton proved the image" in page


def test_a_rough_network_is_matched_as_before():
    _, found = attacked(Absolute, 0.5)
    assert found.method == Method.MATCHING
    assert found.certificate is None
    assert "Gauss–Newton" not in found.message


def test_what_solving_does_not_prove_is_matched_and_said(monkeypatch):
    hopeless = sl.matching.GaussNewton(descent=DampedDescent(steps=1))
    monkeypatch.setattr(solved, "InputSearch", partial(InputSearch, method=hopeless, restarts=0))
    _, found = attacked(nn.SiLU, 0.5)
    assert found.method == Method.MATCHING
    assert not found.certificate.proved
    assert "Gauss–Newton proved no image" in found.message


def how_it_ended(found):
    return found.attempts[solved.GAUSS_NEWTON.id]


def test_the_attempts_say_whether_it_succeeded_does_not_apply_or_could_not_run(monkeypatch):
    assert how_it_ended(attacked(nn.SiLU, 60.0)[1])[0] is Outcome.SUCCEEDED
    outcome, why = how_it_ended(attacked(Absolute, 1.0)[1])
    assert outcome is Outcome.NOT_APPLICABLE
    assert "abs" in str(why)

    def broken(*_: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(sl.matching.GaussNewton, "roughness", broken)
    outcome, why = how_it_ended(attacked(nn.SiLU, 1.0)[1])
    assert outcome is Outcome.NOT_CARRIED_OUT
    assert "no such operator" in str(why)


def test_without_time_nothing_is_searched():
    _, found = attacked(nn.SiLU, 0.0)
    assert found.method == Method.NONE


def test_the_page_draws_misfits_and_spectrum_on_logarithmic_axes():
    certificate = Certificate(True, misfits=(1e6, 1e3, 1.0), spectrum=torch.tensor([1e-6, 1e-2]))
    first, second = curves(certificate)
    heights = [float(point.split(",")[1]) for point in first["path"].split()]
    assert heights == pytest.approx([FRAME.y(1.0), FRAME.y(0.5), FRAME.y(0.0)], abs=0.06)
    assert len(second["path"].split()) == 2
    blind = Certificate(False, misfits=(1.0,), spectrum=torch.tensor([math.inf]))
    assert curves(blind)[1]["unshown"] == 1
    assert curves(None) == []
