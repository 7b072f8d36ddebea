from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.labels.evidence.probes import KNOWN_ACTIVATIONS, Pointwise
from softleak.labels.evidence.relation import HeadBias, combine

from .known_case import Known

CASE = Known.of(torch.rand(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.double))
BIAS = HeadBias("bias")
NORM = Pointwise("norm", 40, KNOWN_ACTIVATIONS[0], (1.0, 1.0))  # φ' = 1, as behind a LayerNorm


def combined(factor: float = 1.0, relations=(BIAS, NORM)):
    """Evidence of three clients, the second of which had its norm's gradient multiplied."""
    shares = [
        sl.GradientShare({"bias": CASE.delta[i].float(), "norm": CASE.d[i].float()})
        for i in range(3)
    ]
    shares[1] = shares[1].map(lambda n, g: factor * g if n == "norm" else g)
    return combine(relations, shares, CASE.head, CASE.factors)


def test_pieces_that_agree_decide_within_their_error():
    found = combined()
    assert bool(found.decided.all())
    assert bool(((found.scalar - CASE.tau).abs() <= found.error).all())
    assert bool((found.error < 1e-4 * CASE.tau.abs()).all())
    assert all(len(found.conflicts(client)) == 0 for client in range(3))
    assert all(piece.holds and piece.agrees for piece in found.pieces[1])


def test_a_piece_that_gives_another_scalar_conflicts_with_its_own_client_alone():
    found = combined(1.1)
    assert [len(found.conflicts(client)) for client in range(3)] == [0, 1, 0]
    scalars = sorted(abs(piece.scalar) for piece in found.pieces[1])
    assert scalars[1] / scalars[0] == pytest.approx(1.1, rel=1e-4)


def test_clients_can_be_taken_out():
    found = combined(1.1)
    taken = found.take(torch.tensor([1]))
    assert torch.equal(taken.scalar, found.scalar[1:2])
    assert len(taken.conflicts(0)) == 1


def test_without_a_relation_nothing_is_decided():
    found = combined(relations=())
    assert not bool(found.decided.any())
    assert found.pieces == ((), (), ())
