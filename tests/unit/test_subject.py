from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import HeadNotFound, ModelError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).eval()


class Unknown(nn.Module):
    """Nobody can tell what this takes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1:] != (7, 2):
            raise ValueError("no")
        return self.head(x.flatten(1)[:, :4])


def test_the_head_is_verified_unless_somebody_vouches_for_it():
    assert sl.Subject.of(network(), (6,)).head.name == "2"
    with pytest.raises(HeadNotFound):
        sl.Subject.of(nn.Sequential(network(), nn.Softmax(-1)), (6,))
    model = nn.Sequential(network(), nn.Softmax(-1))
    assert sl.Subject.of(model, (6,), head=sl.Head.of(model, "0.2")).head.name == "0.2"


def test_what_is_made_once_is_not_made_again():
    made = []

    def count(subject: sl.Subject) -> int:
        made.append(subject)
        return len(made)

    subject = sl.Subject.of(network(), (6,))
    assert [subject.once(count), subject.once(count)] == [1, 1]
    other = subject.given(count, 7)
    assert (other.once(count), subject.once(count), len(made)) == (7, 1, 1)


def test_an_input_shape_is_what_was_said_or_a_usual_one():
    assert sl.Subject.of(network(), (6,)).input_shape == (6,)
    assert sl.Subject.of(network()).input_shape == (6,)
    model = Unknown()
    lost = sl.Subject.of(model, head=sl.Head.of(model))
    assert lost.input_shape is None
    with pytest.raises(ModelError, match="pass input_shape"):
        _ = lost.expected_shape


def test_parameters_are_those_of_the_model():
    subject = sl.Subject.of(network(), (6,))
    assert set(subject.parameters) == {"0.weight", "0.bias", "2.weight", "2.bias"}
