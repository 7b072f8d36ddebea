from dataclasses import fields
from inspect import signature

import pytest
import torch

import softleak as sl
from softleak.core.results import Status
from softleak.core.subject import Subject
from softleak.matching import (
    L2,
    LBFGS,
    Adam,
    GivenLabel,
    Matching,
    MatchingSettings,
    Noise,
    Reconstruction,
    reconstruct,
    reconstruct_many,
)
from softleak.matching.reconstruction import Watch
from tests.unit.matching.nets import small, victims


def test_the_functions_take_exactly_the_fields_by_keyword():
    assert list(MatchingSettings.__annotations__) == [field.name for field in fields(Matching)]
    for function in (reconstruct, reconstruct_many):
        assert len(signature(function).parameters) <= 8


def test_the_optimiser_is_the_papers_for_the_objective():
    assert isinstance(Matching().used_optimiser, Adam)
    assert isinstance(Matching(objective=L2()).used_optimiser, LBFGS)
    given = Adam(steps=3)
    assert Matching(objective=L2(), optimiser=given).used_optimiser is given


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_answer_is_a_tuple_with_one_reconstruction_per_share(count):
    model = small()
    _, labels, shares = victims(model, 3)
    matching = Matching(
        label=[GivenLabel(y) for y in labels[:count]], optimiser=Adam(steps=2), start=Noise(3)
    )
    found = matching(Subject(model, sl.Head.of(model)), shares[:count])
    assert isinstance(found, tuple)
    assert [type(one) for one in found] == [Reconstruction] * count


def test_it_is_the_function_configured_beforehand():
    model = small().double()
    _, labels, shares = victims(model, 2)
    settings = {"objective": L2(), "optimiser": LBFGS(steps=1), "label": GivenLabel(labels[0])}
    ours = Matching(**settings)(Subject.of(model, (1, 8, 8)), shares)
    theirs = reconstruct_many(model, shares, **settings)
    assert all(torch.equal(a.input, b.input) for a, b in zip(ours, theirs, strict=True))


def test_a_watch_ends_a_run_and_hears_of_it():
    class Impatient(Watch):
        def tell(self, progress):
            assert progress.total == 3 * 500
            self.stop()

    model = small()
    _, labels, shares = victims(model, 3)
    matching = Matching(label=GivenLabel(labels[0]), optimiser=Adam(steps=500))
    found = matching(Subject(model, sl.Head.of(model)), shares, watch=Impatient())
    assert {one.status for one in found} == {Status.INTERRUPTED}
    assert all(one.evaluations < 500 for one in found)
