from dataclasses import replace

import pytest
import torch

import softleak as sl
from softleak.core.subject import Subject
from softleak.matching import L2, Cosine, GivenLabel, Noise, RandomLabel, TotalVariation
from softleak.matching.problems import DifferentiableModel, MatchingProblems
from softleak.matching.tasks import job_of, targets
from tests.unit.matching.nets import small, victims

PRIORS = (TotalVariation(0.1),)


@pytest.fixture(scope="module")
def case():
    """Three problems, the last of which has a free label, and the unknowns of the truth."""
    model = small().double()
    inputs, labels, shares = victims(model, 3)
    subject = Subject(model, sl.Head.of(model))
    own = DifferentiableModel.of(model, subject.head, torch.double)
    y = labels.double() / labels.double().sum(1, keepdim=True)
    sources = [GivenLabel(y[0]), GivenLabel(y[1]), RandomLabel()]
    recoveries = sl.recover_labels(model, shares)
    objective = L2(0.5, 2.0)
    jobs = [
        job_of(subject, objective, share, recovery, source, Noise())
        for share, recovery, source in zip(shares, recoveries, sources, strict=True)
    ]
    names = tuple(own.parameters)
    made = MatchingProblems(
        own, names, objective, (), (1, 8, 8), targets(jobs, names, own)
    )  # fmt: skip
    truth = made.pack(torch.stack(inputs).double(), y.log())
    return made, truth, torch.stack(inputs).double(), y


def elsewhere(unknowns):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(unknowns.shape, dtype=torch.double, generator=generator)


def test_what_is_packed_is_unpacked(case):
    problems, truth, inputs, labels = case
    assert torch.equal(problems.inputs(truth), inputs)
    assert torch.allclose(problems.labels(truth), labels)
    moved = problems.labels(truth + 3 * elsewhere(truth))
    assert torch.equal(moved[:2], problems.targets.label[:2])  # these are kept
    assert torch.allclose(moved.sum(1), torch.ones(3).double())
    assert not torch.allclose(moved[2], labels[2], atol=1e-2)


@pytest.mark.parametrize("objective", [L2(), Cosine(), L2(0.0), L2(0.5, 2.0), Cosine(2.0, 1.0)])
def test_at_the_truth_the_loss_and_its_gradient_vanish(case, objective):
    problems, truth, _, _ = case
    problems = replace(problems, objective=objective)
    loss, slope = problems.evaluator()(truth)
    away, uphill = problems.evaluator()(truth + 0.1 * elsewhere(truth))
    assert bool((loss < 1e-6 * away).all())
    assert bool((slope.norm(dim=1) < 1e-3 * uphill.norm(dim=1)).all())


def test_gradients_are_those_of_the_loss(case):
    problems, truth, _, _ = case
    evaluate = replace(problems, priors=PRIORS).evaluator()
    x, way = truth + 0.3 * elsewhere(truth), elsewhere(truth).flip(0)
    _, slope = evaluate(x)
    measured = (evaluate(x + 1e-6 * way)[0] - evaluate(x - 1e-6 * way)[0]) / 2e-6
    assert torch.allclose((slope * way).sum(1), measured, rtol=1e-5)
    assert not slope[:2, -4:].any()  # the logits of a label that is kept have no effect
    assert slope[2, -4:].any()


def test_problems_do_not_depend_on_each_other(case):
    problems, truth, _, _ = case
    x = truth + 0.3 * elsewhere(truth)
    loss, slope = problems.evaluator()(x)
    for rows in (torch.tensor([2, 0]), torch.tensor([False, True, False])):
        some, slopes = problems.select(rows).evaluator()(x[rows])
        assert torch.allclose(some, loss[rows])
        assert torch.allclose(slopes, slope[rows])


def test_one_by_one_is_the_same_as_all_at_once(case):
    problems, truth, _, _ = case
    problems = replace(problems, priors=PRIORS)
    x = truth + 0.3 * elsewhere(truth)
    for fast, slow in zip(problems.evaluator()(x), problems._one_by_one(x), strict=True):
        assert torch.allclose(fast, slow)


def test_a_model_that_cannot_be_vectorised_is_evaluated_one_by_one(case):
    problems, truth, _, _ = case
    x = truth + 0.3 * elsewhere(truth)
    expected, _ = problems.evaluator()(x)

    def branching(x):
        return x.sum() * 0 if float(x.detach().sum()) > 0 else x.mean() * 0

    found, _ = replace(problems, priors=(branching,)).evaluator()(x)
    assert torch.allclose(found, expected)


def test_the_terms_of_the_objective_add_up(case):
    """Eq. 8: the loss is linear in α and β, and priors are added to it."""
    problems, truth, _, _ = case
    x = truth + 0.3 * elsewhere(truth)

    def loss(alpha, beta, priors=()):
        return replace(problems, objective=L2(alpha, beta), priors=priors).evaluator()(x)[0]

    body, head, feature = loss(0, 0), loss(1, 0) - loss(0, 0), loss(0, 1) - loss(0, 0)
    assert bool((head > 0).all())
    assert bool((feature > 0).all())
    assert torch.allclose(loss(0.3, 5.0), body + 0.3 * head + 5 * feature)
    added = torch.stack([PRIORS[0](one) for one in problems.inputs(x)])
    assert torch.allclose(loss(1, 0, PRIORS), loss(1, 0) + added)


def test_the_misfit_is_relative_and_knows_neither_weights_nor_priors(case):
    problems, truth, _, _ = case
    x = truth + 0.3 * elsewhere(truth)
    found = replace(problems, objective=Cosine(0.0, 3.0), priors=PRIORS).misfits(x)
    loss, _ = replace(problems, objective=L2()).evaluator()(x)
    sizes = sum(g.flatten(1).square().sum(1) for g in problems.targets.gradients)
    assert found == pytest.approx((loss / sizes).sqrt().tolist())
    assert max(problems.misfits(truth)) < 1e-4
