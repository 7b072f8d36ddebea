from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import (
    InputFinding,
    Leak,
    Method,
    NamedShare,
    Options,
    audit_shares,
)
from softleak.audit import (
    whatif as defended_attack,
)
from softleak.audit.weakest import GRID_FACTOR, Search, root_mean_square
from softleak.audit.whatif import Trial, from_first
from softleak.core.errors import OptionError
from softleak.core.subject import Subject
from softleak.inversion.chain import chain_of
from softleak.inversion.results import NoWay

SHAPE = (3, 8, 8)


@pytest.fixture(scope="module")
def case():
    """A small chain, one share of it, and its audit."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 32), nn.Sigmoid(), nn.Linear(32, 5, bias=False)
    )
    share = sl.capture(model, torch.rand(SHAPE), 2)
    subject, options = Subject.of(model, SHAPE), Options(views=False)
    (report,) = audit_shares(subject, [NamedShare("one", share)], options)
    return subject, share, report, options


def search(case, *leaks: Leak, seeds: int = 2) -> Search:
    subject, share, report, options = case
    return Search.of(subject, share, report, options, frozenset(leaks), seeds)


def test_the_weakest_noise_hides_and_half_of_it_does_not(case):
    tried = search(case, Leak.CLASS)
    stopped = tried.weakest()
    assert stopped is not None
    hidden = [
        tried._hit(stopped.setting * f, frozenset({Leak.CLASS})) for f in (1.0, 1 / GRID_FACTOR)
    ]
    assert hidden == [False, True]
    assert stopped.guesses.trials == 2
    assert stopped.guesses.value <= stopped.class_bound <= 1.0


def test_the_share_itself_is_not_hidden(case):
    assert not search(case, Leak.CLASS).stops(case[1])
    assert not search(case, Leak.INPUT).stops(case[1])
    assert not search(case, Leak.LABEL).stops(case[1])


def test_what_nobody_knew_undefended_is_hidden_from_the_start(case):
    own = search(case, Leak.INPUT)
    blind = replace(own, subject=own.subject.given(chain_of, NoWay("")), reach=None)
    stopped = blind.weakest()
    assert stopped is not None
    assert stopped.setting == pytest.approx(root_mean_square(case[1]) * GRID_FACTOR**-12)


@pytest.mark.parametrize(("determined", "hidden"), [(True, False), (False, True)])
def test_what_an_attacker_would_believe_counts_though_it_is_wrong(
    case, monkeypatch, determined, hidden
):
    wrong = InputFinding(
        Method.INVERSION, "", torch.zeros(SHAPE), psnr_predicted=90.0, determined=determined
    )
    monkeypatch.setattr(defended_attack, "recover_input", lambda *_: wrong)
    tried = replace(search(case, Leak.INPUT), reach=None)
    assert tried.stops(case[1]) is hidden
    trial = Trial(case[0], tried.target, lambda: case[1], case[3])
    assert not trial.hits(Leak.INPUT, (case[0],))


def test_an_image_within_reach_counts_though_no_walk_brings_it(case, monkeypatch):
    nothing = InputFinding(Method.INVERSION, "")
    monkeypatch.setattr(defended_attack, "recover_input", lambda *_: nothing)
    tried = search(case, Leak.INPUT)
    weak, strong = tried.grid[0], tried.grid[-1]
    assert not tried.stops(tried.send(weak, 0), weak)
    assert tried.stops(tried.send(strong, 0), strong)
    assert replace(tried, reach=None).stops(tried.send(weak, 0), weak)


@pytest.mark.parametrize("start", [None, 0, 3, 7, 20])
@pytest.mark.parametrize("first", range(9))
def test_the_first_that_hides_is_found_wherever_one_begins(start, first):
    grid = [float(i) for i in range(8)]
    asked: list[float] = []

    def hidden(setting: float) -> bool:
        asked.append(setting)
        return setting >= first

    assert from_first(grid, hidden, start) == grid[first:]
    assert len(asked) == len(set(asked))
    assert from_first([], hidden, start) == []


@pytest.mark.parametrize(("leaks", "seeds"), [((), 1), ((Leak.FEATURE,), 1), ((Leak.CLASS,), 0)])
def test_wrong_questions_are_refused(case, leaks, seeds):
    with pytest.raises(OptionError, match="expected"):
        search(case, *leaks, seeds=seeds)
