"""Every attack over every kind of model and share: a result with a status for each, whatever comes.

An attack is a function of a subject, shares and knowledge. None may raise for one share of many,
and no share changes the answer for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import Options
from softleak.audit.input_attacks import recover_input
from softleak.audit.report import CompositionFinding, InputFinding
from softleak.audit.several import read_composition
from softleak.core.results import Status
from softleak.defenses import Clip, GaussianNoise, Int8, Prune, Sign
from softleak.labels.recover import recover
from softleak.matching import LBFGS, Matching
from softleak.paper.models import vit

SHAPE = (3, 8, 8)
CLASSES = 6


class Residual(nn.Module):
    """A block with a branch, BatchNorm, pooling and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head((x + self.block(x)).mean((2, 3)))


def chain() -> nn.Module:
    conv = nn.Conv2d(3, 12, 3, stride=2, padding=1)
    return nn.Sequential(conv, nn.Sigmoid(), nn.Flatten(), nn.Linear(192, CLASSES))


def plain_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, CLASSES))


def log_softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES, bias=False), nn.LogSoftmax(-1))


def two_classes() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.Tanh(), nn.Linear(9, 2))


def small_vit() -> nn.Module:
    return vit(CLASSES, image=8, patch=4, width=12, depth=1, heads=2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": chain,
    "fully connected": plain_mlp,
    "log-softmax": log_softmax,
    "two classes": two_classes,
    "residual": Residual,
    "transformer": small_vit,
}


def batch_of(model: nn.Module, size: int) -> sl.GradientShare:
    """The mean gradient of several samples."""
    shares = [sl.capture(model, torch.rand(SHAPE), i % 2) for i in range(size)]
    mean = {n: sum(share[n] for share in shares) / size for n in shares[0]}
    return sl.GradientShare(mean, SHAPE)


def shares_of(model: nn.Module) -> dict[str, sl.GradientShare]:
    """A good share, and one of every other kind."""
    good = sl.capture(model, torch.rand(SHAPE), 1)
    head = sl.Subject.of(model, SHAPE).head
    return {
        "good": good,
        "zero": good.map(lambda _, g: torch.zeros_like(g)),
        "not a number": good.map(lambda _, g: g * float("nan")),
        "without the head": good.without(head.weight_name, head.bias_name),
        "head only": sl.GradientShare({head.weight_name: good[head.weight_name]}, SHAPE),
        "of another model": sl.GradientShare({head.weight_name: torch.ones(3, 5)}, SHAPE),
        "of a batch": batch_of(model, 4),
        "noisy": GaussianNoise(1e-3, 0)(good),
        "clipped": Clip(good.norm() / 7)(good),
        "pruned": Prune(0.3)(good),
        "signs": Sign()(good),
        "eight bits": Int8()(good),
        "half precision": good.map(lambda _, g: g.half()),
        "negative": good.scaled(-1),
        "without a shape": sl.GradientShare(good.gradients),
    }


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()
    subject, shares = sl.Subject.of(model, SHAPE), shares_of(model)
    found = recover(subject, list(shares.values()), sl.Knowledge())
    return subject, shares, dict(zip(shares, found, strict=True))


def same(one: sl.Recovery, other: sl.Recovery) -> bool:
    if one.status is not other.status or (one.label is None) != (other.label is None):
        return False
    return one.label is None or torch.allclose(one.label, other.label, atol=1e-9)


def test_labels(case):
    subject, shares, found = case
    assert all(isinstance(one.status, sl.Status) and one.message for one in found.values())
    refused = {name for name, one in found.items() if one.status is sl.Status.REFUSED}
    assert refused == {"not a number", "without the head", "of another model"}
    assert found["zero"].status is sl.Status.ZERO_GRADIENT
    assert found["of a batch"].status is not sl.Status.UNIQUE
    for name, share in shares.items():
        assert same(found[name], recover(subject, [share], sl.Knowledge())[0]), name
    with pytest.raises(sl.SoftleakError, match="NaN"):
        sl.recover_label(subject.model, shares["not a number"])


def readable(found: dict[str, sl.Recovery]) -> Sequence[str]:
    return [name for name, one in found.items() if one.status is not sl.Status.REFUSED]


def test_composition(case):
    subject, shares, recoveries = case
    for name in readable(recoveries):
        if subject.head.weight_name in shares[name]:
            found = read_composition(subject, shares[name], sl.Knowledge())
            assert isinstance(found, CompositionFinding), name
            assert found.message, name


def test_inputs(case):
    subject, shares, recoveries = case
    for name in readable(recoveries):
        answer = recover_input(subject, shares[name], recoveries[name], Options(seconds=0.0))
        assert isinstance(answer, InputFinding), name
        assert answer.message, name
        assert answer.leaked in (True, False), name


def test_matching(case):
    subject, shares, recoveries = case
    quick = Matching(sl.L2(), LBFGS(steps=1, inner=2))
    found = quick(subject, list(shares.values()), list(recoveries.values()))
    assert len(found) == len(shares)
    for name, one in zip(shares, found, strict=True):
        assert isinstance(one.status, Status), name
        assert (one.input is None) == one.status.name.startswith(
            ("UNFIT", "NO_LABEL", "ZERO", "NON_FINITE")
        ), name
    assert found[0].input is not None
    assert found[0].input.shape == SHAPE


def test_audits(case):
    subject, shares, _ = case
    share = shares["good"]
    report = sl.audit(subject.model, share, options=Options(seconds=0.0, views=False))
    assert report.states
    assert report.assumptions
