from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

import softleak as sl
from benchmarks.classic import (
    PUBLISHED_SMOOTHING,
    ClassicOutcome,
    FullHead,
    LBFGSSearch,
    LBFGSThenPSO,
    PSOSearch,
    SwarmSearch,
    on_plateau,
)
from softleak.core.errors import NonFinite
from softleak.paper import data
from softleak.paper.classic import INTERVALS, RowRatios, Swarm, Variance


def lean(search: LBFGSThenPSO) -> LBFGSThenPSO:
    return LBFGSThenPSO(
        replace(search.lbfgs, evaluation=RowRatios), replace(search.pso, evaluation=RowRatios)
    )


def swarms(search: SwarmSearch, **settings) -> SwarmSearch:
    return replace(search, pso=replace(search.pso, **settings))


@dataclass(frozen=True)
class Spy(Variance):
    """Keeps how many labels it is asked about."""

    seen: list = field(default_factory=list)

    def __call__(self, y):
        self.seen.append(len(y))
        return super().__call__(y)


@dataclass(frozen=True, kw_only=True)
class Plateau(LBFGSSearch):
    """Flat up to 3 away from zero, a parabola around the solution beyond."""

    solution: float

    def search(self, loss):
        def flat(scalars):
            beyond = scalars * self.solution >= 15
            return torch.where(beyond, (scalars - self.solution).square(), 100 + 0 * scalars)

        return super().search(flat)


# The published code's settings for mixup; its intervals end at 6, 16 and 66.
PUBLISHED_MIXUP = LBFGSThenPSO(
    LBFGSSearch(loss=Variance(2), coefficient=2.0, jump=0.5),
    swarms(
        replace(PUBLISHED_SMOOTHING.pso, loss=Variance(2), coefficient=2.0),
        widths=(5.0, 10.0, 50.0),
    ),
)
SMOOTHING, MIXUP = lean(PUBLISHED_SMOOTHING), lean(PUBLISHED_MIXUP)
TEXT_MIXUP = lean(LBFGSThenPSO(LBFGSSearch(loss=Variance(2)), SwarmSearch(loss=Variance(2))))
CELLS = [
    pytest.param(SMOOTHING.lbfgs, data.Smoothing(), id="lbfgs-smoothing"),
    pytest.param(MIXUP.lbfgs, data.Mixup(0.1, 0.4), id="lbfgs-mixup"),
    pytest.param(SMOOTHING.lbfgs, data.Hard(), id="lbfgs-onehot"),
    pytest.param(lean(LBFGSThenPSO()).lbfgs, data.Smoothing(), id="lbfgs-text"),
    pytest.param(SMOOTHING.pso, data.Smoothing(), id="pso-smoothing"),
    pytest.param(MIXUP.pso, data.Mixup(0.1, 0.4), id="pso-mixup"),
    pytest.param(SMOOTHING.pso, data.Hard(), id="pso-onehot"),
    pytest.param(SMOOTHING, data.Smoothing(), id="both-smoothing"),
    pytest.param(TEXT_MIXUP, data.Mixup(0.1, 0.4), id="both-text-mixup"),
    pytest.param(PUBLISHED_SMOOTHING.lbfgs, data.Smoothing(), id="lbfgs-as-published"),
    pytest.param(PUBLISHED_MIXUP.lbfgs, data.Mixup(0.1, 0.4), id="lbfgs-mixup-as-published"),
]


@pytest.mark.parametrize(("search", "augmentation"), CELLS)
def test_recovers_labels_of_an_untrained_network(search, augmentation, lenet, draw):
    for sample in draw(augmentation, 5):
        result = search(lenet, sl.capture(lenet, sample.x, sample.y))
        assert result.converged
        assert result.loss < 1e-9
        assert torch.allclose(result.label, sample.y.double(), rtol=0, atol=1e-4)
        assert result.label.sum().item() == pytest.approx(1, abs=1e-5)
        feature = lenet.features(sample.x[None]).flatten().double()
        assert torch.allclose(result.feature, feature, rtol=1e-3)


@pytest.mark.parametrize("search", [SMOOTHING.lbfgs, SMOOTHING.pso])
def test_scalar_is_the_papers(search, lenet, draw):
    sample = draw(data.Smoothing(), 1)[0]
    result = search(lenet, sl.capture(lenet, sample.x, sample.y))
    delta = lenet(sample.x[None])[0].detach().softmax(-1) - sample.y
    assert result.scalar == pytest.approx(1 / float(delta[result.row]), rel=1e-3)
    assert result.scalar < 0  # so the positive side was searched first, in vain


@pytest.mark.parametrize("search", [SMOOTHING.lbfgs, SMOOTHING.pso, SMOOTHING])
def test_head_may_be_named_or_prepared(search, lenet, smoothed):
    answers = [
        search(lenet, smoothed[0], head=head) for head in (None, "classifier", sl.Head.of(lenet))
    ]
    assert len({answer.scalar for answer in answers}) == 1


@pytest.mark.parametrize("search", [LBFGSSearch(), SwarmSearch(), LBFGSThenPSO()])
def test_zero_gradient(search, lenet, silent):
    result = search(lenet, silent)
    assert result.outcome is ClassicOutcome.ZERO_GRADIENT
    assert not result.converged
    assert result.label is result.feature is result.scalar is None


@pytest.mark.parametrize(
    ("search", "outcome"),
    [
        (replace(SMOOTHING.lbfgs, bound=1.5), ClassicOutcome.OUT_OF_BOUND),
        (replace(SMOOTHING.lbfgs, iterations=2, jump=0.0), ClassicOutcome.EXHAUSTED),
        (replace(SMOOTHING.lbfgs, threshold=0.0), ClassicOutcome.EXHAUSTED),
        (swarms(SMOOTHING.pso, initial=40.0), ClassicOutcome.OUT_OF_BOUND),
        (swarms(SMOOTHING.pso, bound=2.0), ClassicOutcome.OUT_OF_BOUND),
        (swarms(SMOOTHING.pso, swarm=Swarm(3, 1)), ClassicOutcome.OUT_OF_BOUND),
        (LBFGSThenPSO(replace(SMOOTHING.lbfgs, bound=1.5), swarms(SMOOTHING.pso, bound=2.0)),
         ClassicOutcome.OUT_OF_BOUND),
    ],
)  # fmt: skip
def test_failure_says_so_and_claims_nothing(search, outcome, lenet, smoothed):
    result = search(lenet, smoothed[0])
    assert result.outcome is outcome
    assert not result.converged
    assert result.label is None
    assert result.feature is None


@pytest.mark.parametrize("search", [SMOOTHING.lbfgs, SMOOTHING.pso])
def test_no_label_for_the_wrong_kind(search, lenet, draw):
    for sample in draw(data.Dirichlet(), 3):
        result = search(lenet, sl.capture(lenet, sample.x, sample.y))
        assert result.label is None
        assert math.isfinite(result.scalar)
        assert result.loss > 1e-9


def test_not_a_number_is_refused(lenet, smoothed):
    broken = smoothed[0].map(lambda name, g: g * math.nan)
    with pytest.raises(NonFinite):
        SMOOTHING(lenet, broken)


class TestLBFGS:
    def test_restarts_from_the_negative_side(self, lenet, smoothed):
        spy = Spy()
        result = LBFGSSearch(loss=spy)(lenet, smoothed[0])
        assert result.evaluations == len(spy.seen)
        assert result.scalar < 0
        assert torch.allclose(result.label, smoothed[1], rtol=0, atol=1e-4)

    def test_no_restart_if_the_first_side_succeeds(self, lenet, smoothed):
        there = LBFGSSearch(initial=-1.0)(lenet, smoothed[0])
        assert there.converged
        assert there.evaluations < LBFGSSearch()(lenet, smoothed[0]).evaluations

    def test_works_where_gradients_are_off(self, lenet, smoothed):
        with torch.no_grad():
            assert SMOOTHING.lbfgs(lenet, smoothed[0]).converged

    def test_leaves_the_model_alone(self, lenet, smoothed):
        LBFGSSearch(evaluation=FullHead)(lenet, smoothed[0])
        assert all(parameter.grad is None for parameter in lenet.parameters())

    @pytest.mark.parametrize("solution", [5.0, -5.0])
    def test_skip_leaves_a_plateau(self, solution, lenet, smoothed):
        still = Plateau(solution=solution)
        assert still(lenet, smoothed[0]).outcome is ClassicOutcome.EXHAUSTED
        result = replace(still, jump=0.5)(lenet, smoothed[0])
        assert result.converged
        assert result.scalar == pytest.approx(solution / still.coefficient, abs=1e-4)

    def test_an_undefined_loss_ends_in_failure(self, lenet, smoothed):
        result = Plateau(solution=math.nan)(lenet, smoothed[0])
        assert not result.converged
        assert result.label is None

    @pytest.mark.parametrize(
        ("losses", "due"),
        [([1.0, 1.0], False), ([9.0, 1.0, 1.0005, 1.0], True), ([1.0, 1.0, 1.01], False)],
    )
    def test_skip_is_due_when_three_losses_agree(self, losses, due):
        assert on_plateau(losses) is due


class TestPSO:
    @pytest.mark.parametrize(
        ("search", "ends"),
        [
            (PUBLISHED_SMOOTHING.pso.pso, (6, 10, 30, 50)),
            (PUBLISHED_MIXUP.pso.pso, (6, 16, 66)),
            (PSOSearch(widths=(4.0, 5.0), bound=10.5), (5, 10)),
            (PSOSearch(), tuple(range(6, 67, 5))),
        ],
    )
    def test_intervals_grow_and_alternate(self, search, ends):
        found = list(search.intervals())
        starts = (1.0, *ends[:-1])
        assert [low for low, _ in found[::2]] == pytest.approx([s - 0.3 for s in starts])
        assert [high for _, high in found[::2]] == list(ends)
        assert found[1::2] == [(-high, -low) for low, high in found[::2]]

    def test_those_for_noise_are_as_published(self):
        published = PSOSearch(widths=(4.0, 5.0), bound=10.5)
        assert tuple(published.intervals()) == INTERVALS

    def test_a_seed_is_an_answer(self, lenet, smoothed):
        first, again, other = (
            swarms(SMOOTHING.pso, seed=seed)(lenet, smoothed[0]).scalar for seed in (1, 1, 2)
        )
        assert first == again != other

    def test_stops_at_the_first_interval_that_will_do(self, lenet, smoothed):
        stopped = SMOOTHING.pso(lenet, smoothed[0])
        everywhere = swarms(SMOOTHING.pso, threshold=0.0)(lenet, smoothed[0])
        swarm = SMOOTHING.pso.pso.swarm.particles * (SMOOTHING.pso.pso.swarm.iterations + 1)
        assert stopped.evaluations in (2 * swarm, 4 * swarm)  # the negative one of a pair
        assert everywhere.evaluations == 8 * swarm
        assert everywhere.loss <= stopped.loss

    def test_one_at_a_time_finds_the_same(self, lenet, smoothed):
        search = SwarmSearch(pso=PSOSearch(swarm=Swarm(100, 20), threshold=1e-4))
        full, quick = (
            replace(search, evaluation=kind)(lenet, smoothed[0]) for kind in (FullHead, RowRatios)
        )
        assert full.scalar == pytest.approx(quick.scalar, rel=1e-2)
        assert full.evaluations == quick.evaluations


class TestBoth:
    def test_swarm_only_where_descent_fails(self, lenet, smoothed):
        descent = SMOOTHING.lbfgs(lenet, smoothed[0])
        assert SMOOTHING(lenet, smoothed[0]).evaluations == descent.evaluations
        crippled = replace(SMOOTHING.lbfgs, bound=1.5)
        result = LBFGSThenPSO(crippled, SMOOTHING.pso)(lenet, smoothed[0])
        swarm = SMOOTHING.pso(lenet, smoothed[0])
        assert result.scalar == swarm.scalar
        assert result.evaluations == crippled(lenet, smoothed[0]).evaluations + swarm.evaluations
