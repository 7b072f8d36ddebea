import pytest
import torch

from softleak.matching.optimisers import History


def two_loops(slope, pairs):
    """``−H g`` as in the textbook, one problem at a time."""
    q, weights = slope.clone(), []
    for s, y in reversed(pairs):
        weights.append((s @ q) / (s @ y))
        q = q - weights[-1] * y
    if pairs:
        s, y = pairs[-1]
        q = q * (s @ y) / (y @ y)
    for (s, y), weight in zip(pairs, reversed(weights), strict=True):
        q = q + s * (weight - (y @ q) / (s @ y))
    return -q


@pytest.mark.parametrize("length", [1, 3, 7])
def test_the_compact_form_is_the_two_loop_recursion(length):
    torch.manual_seed(0)
    count, size = 4, 20
    root = torch.randn(size, size, dtype=torch.double)
    curvature = root @ root.T + torch.eye(size)
    history = History.empty(torch.zeros(count, size, dtype=torch.double), length)
    pairs = [[] for _ in range(count)]
    for number in range(10):
        s = torch.randn(count, size, dtype=torch.double)
        y = s @ curvature
        told = torch.tensor([True, number % 2 == 0, number < 2, False])
        history.remember(told, s, y)
        for problem in told.nonzero()[:, 0].tolist():
            pairs[problem].append((s[problem], y[problem]))
    slope = torch.randn(count, size, dtype=torch.double)
    expected = torch.stack([two_loops(g, p[-length:]) for g, p in zip(slope, pairs, strict=True)])
    assert torch.allclose(history.step(slope), expected, rtol=1e-9)


def test_pairs_without_curvature_are_not_remembered():
    history = History.empty(torch.zeros(2, 3), 4)
    s = torch.ones(2, 3)
    history.remember(torch.tensor([True, True]), s, torch.stack([-s[0], s[1]]))
    assert history.bare.tolist() == [True, False]


def test_what_is_forgotten_has_no_effect():
    torch.manual_seed(0)
    history = History.empty(torch.zeros(2, 5), 3)
    s = torch.randn(2, 5)
    history.remember(torch.tensor([True, True]), s, 3 * s)
    history.forget(torch.tensor([True, False]))
    slope = torch.randn(2, 5)
    step = history.step(slope)
    assert torch.equal(step[0], -slope[0])
    assert not torch.allclose(step[1], -slope[1])
