from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.audit.metrics import distance_to_set, label_error
from softleak.core.errors import HeadNotFound, LabelError, MissingGradient, NonFinite, ShareError
from softleak.paper import data, models

KINDS = [
    (data.Smoothing(), sl.Smoothed()),
    (data.Mixup(), sl.Mixed(2)),
    (data.Hard(), sl.OneHot()),
    (data.Mixup(epsilon=0.1), sl.SmoothedMixed(2)),
]


@pytest.mark.parametrize(("augmentation", "family"), KINDS)
@pytest.mark.parametrize("assume", [True, False])
def test_head_only(trained, shares, augmentation, family, assume):
    captured, truth = shares(augmentation, 25)
    found = sl.recover_labels(trained, captured, family=family if assume else None, evidence=False)
    for recovery, y in zip(found, truth, strict=True):
        assert recovery.status is sl.Status.UNIQUE
        assert label_error(recovery, y) <= min(recovery.error, 1e-5)
        assert recovery.evidence == ()


def test_arbitrary_labels_need_evidence_and_get_it(trained, shares):
    captured, truth = shares(data.Dirichlet(), 25)
    for recovery, y in zip(sl.recover_labels(trained, captured), truth, strict=True):
        assert recovery.status is sl.Status.UNIQUE
        assert label_error(recovery, y) <= min(recovery.error, 1e-5)
        assert [piece.parameter for piece in recovery.evidence] == ["features.4.bias"]
        assert recovery.family == sl.AnyLabel()
    for recovery in sl.recover_labels(trained, captured, evidence=False):
        assert recovery.status is sl.Status.NO_SOLUTION
        assert recovery.label is None
        assert recovery.feature is None


@pytest.mark.parametrize("evidence", [True, False])
def test_what_is_recovered_can_be_differentiated_through(trained, shares, evidence):
    """The search runs without gradients, of which nothing may be left in its answers."""
    (captured,), _ = shares(data.Smoothing(), 1)
    found = sl.recover_label(trained, captured, evidence=evidence)
    for tensor in (found.label, found.feature, *(one.label for one in found.candidates)):
        weight = torch.ones_like(tensor, requires_grad=True)
        (weight * tensor).sum().backward()
        assert torch.equal(weight.grad, tensor)


def test_the_simplest_family_is_named(trained, shares):
    for augmentation, family in KINDS:
        captured, _ = shares(augmentation, 3)
        assert all(r.family == family for r in sl.recover_labels(trained, captured))


def test_the_feature_is_the_heads_input(trained, draw):
    (sample,) = draw(data.Mixup(), 1)
    seen: list[Tensor] = []
    hook = trained.classifier.register_forward_hook(lambda _, x, __: seen.append(x[0][0].detach()))
    share = sl.capture(trained, sample.x, sample.y)
    hook.remove()
    recovery = sl.recover_label(trained, share)
    assert recovery.feature is not None
    error = float((recovery.feature - seen[0]).norm() / seen[0].norm())
    assert error <= recovery.feature_error < 1e-4


def test_many_at_once_is_one_at_a_time(trained, shares):
    captured = shares(data.Smoothing(), 6)[0] + shares(data.Dirichlet(), 6)[0]
    together = sl.recover_labels(trained, captured)
    alone = [sl.recover_label(trained, share) for share in captured]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.label, b.label, rtol=0, atol=1e-6)
        assert a.status is b.status


def test_shares_that_lack_layers_are_used_as_far_as_they_go(trained, shares):
    (full,), (y,) = shares(data.Smoothing(), 1)
    bare = sl.GradientShare({"classifier.weight": full["classifier.weight"]})
    together = sl.recover_labels(trained, [full, bare, full.without("features.0.weight")])
    assert [len(r.evidence) for r in together] == [1, 0, 1]
    assert all(label_error(r, y) < 1e-5 for r in together)


def test_a_share_from_two_checkpoints(trained, shares):
    captured, truth = shares(data.Smoothing(), 5)
    before = {name: p.detach() for name, p in trained.named_parameters()}
    for share, y in zip(captured, truth, strict=True):
        after = {name: p - 0.1 * share[name] for name, p in before.items()}
        update = sl.GradientShare.from_update(before, after, lr=0.1)
        recovery = sl.recover_label(trained, update)
        assert recovery.status is sl.Status.UNIQUE
        assert label_error(recovery, y) <= recovery.error < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_honest(trained, shares, dtype):
    captured, truth = shares(data.Smoothing(), 20)
    halved = [share.map(lambda _, g: g.to(dtype)) for share in captured]
    for recovery, y in zip(sl.recover_labels(trained, halved), truth, strict=True):
        assert recovery.status in (sl.Status.UNIQUE, sl.Status.AMBIGUOUS)
        if recovery.status is sl.Status.UNIQUE:
            assert label_error(recovery, y) < 1e-3
        assert distance_to_set(recovery, y) < 5e-3
        assert label_error(recovery, y) <= recovery.error


def saturated() -> tuple[nn.Linear, Tensor]:
    """A head so sure of class 0 that its softmax is one-hot to the last bit."""
    head = nn.Linear(8, 5, bias=False)
    with torch.no_grad():
        head.weight.mul_(10)
        head.weight[0] += 100
    return head, torch.rand(8) + 0.5


def test_a_saturated_softmax_is_ambiguous_and_says_between_what():
    head, x = saturated()
    y = data.smooth(0, 5, 0.4)
    recovery = sl.recover_label(head, sl.capture(head, x, y), family=sl.Smoothed(), evidence=False)
    assert recovery.status is sl.Status.AMBIGUOUS
    assert "continuum" in recovery.message
    assert distance_to_set(recovery, y) < 1e-3
    assert label_error(recovery, y) <= recovery.error
    widths = [candidate.width for candidate in recovery.solutions]
    assert max(widths) > 0.5


def test_a_zero_gradient_has_no_label():
    head, x = saturated()
    recovery = sl.recover_label(head, sl.capture(head, x, 0), evidence=False)
    assert recovery.status is sl.Status.ZERO_GRADIENT
    assert recovery.label is None


@pytest.mark.parametrize("batch", range(2, 9))
def test_several_samples_are_never_given_a_label(trained, shares, batch):
    captured, _ = shares(data.Mixup(), batch)
    mean = {n: sum(share[n] for share in captured) / batch for n in captured[0]}
    for evidence in (True, False):
        recovery = sl.recover_label(trained, sl.GradientShare(mean, (3, 32, 32)), evidence=evidence)
        assert recovery.status is sl.Status.NOT_SINGLE
        assert recovery.label is None
        assert recovery.samples == batch


@pytest.mark.once
def test_noise_is_never_given_a_wrong_label(trained, shares):
    captured, truth = shares(data.Smoothing(), 4)
    proofs = []
    # Most shares where a proof is in reach; behind more noise each takes half a second.
    for size, few in ((1e-9, 4), (1e-8, 4), (1e-7, 4), (1e-6, 4), (1e-5, 2), (1e-3, 1), (1e-1, 1)):
        some = captured[:few]
        noisy = [s.map(lambda _, g, size=size: g + size * torch.randn_like(g)) for s in some]
        for recovery, y in zip(sl.recover_labels(trained, noisy), truth[:few], strict=True):
            if recovery.status is sl.Status.UNIQUE:
                proofs.append(size)
                assert label_error(recovery, y) < 1e-3, size
    assert proofs.count(1e-9) == 4  # less than rounding: the test has proofs to look at
    assert 1e-1 not in proofs


def test_evidence_that_disagrees_is_reported(shares):
    model = models.resnet20().eval()
    (share,), _ = shares(data.Smoothing(), 1, model)
    altered = share.map(lambda name, g: 1.1 * g if name == "linear.bias" else g)
    recovery = sl.recover_label(model, altered)
    assert recovery.status is sl.Status.AMBIGUOUS
    assert "disagree" in recovery.message
    assert [piece.agrees for piece in recovery.evidence].count(False) == 1
    assert all(piece.holds for piece in recovery.evidence)


def test_a_scaled_share_vouched_for_is_contradicted_and_read_at_its_own_factor(trained, shares):
    captured, labels = shares(data.Hard(), 10)
    scaled = [share.scaled(3.0) for share in captured]
    found = sl.recover_labels(trained, scaled, scale="known")
    for recovery, label in zip(found, labels, strict=True):
        assert recovery.status in (sl.Status.AMBIGUOUS, sl.Status.NO_SOLUTION)
        assert recovery.readings or not recovery.fit.holds
        for reading in recovery.readings:
            assert reading.scale == pytest.approx(3, rel=1e-3)
            assert int(reading.label.argmax()) == int(label.argmax())


def test_a_scaled_share_nobody_vouches_for_is_read_otherwise(trained, shares):
    captured, labels = shares(data.Hard(), 10)
    scaled = [share.scaled(3.0) for share in captured]
    for recovery, y in zip(sl.recover_labels(trained, scaled), labels, strict=True):
        assert recovery.status is sl.Status.AMBIGUOUS
        (reading,) = recovery.readings
        assert reading.scale == pytest.approx(3.0, rel=1e-4)
        assert int(reading.label.argmax()) == int(y.argmax())


@dataclass(frozen=True)
class Votes:
    """A user's own family: the shares of votes of ``n`` people."""

    n: int

    def project(self, y: Tensor) -> Tensor:
        return (y * self.n).round().clamp_min(0) / self.n


def test_a_family_of_ones_own_in_a_few_lines(trained, draw):
    (sample,) = draw(data.Hard(), 1)
    y = torch.tensor([0.4, 0.2, 0.2, 0.2, 0, 0, 0, 0, 0, 0], dtype=torch.double)
    share = sl.capture(trained, sample.x, y)
    recovery = sl.recover_label(trained, share, family=Votes(5), evidence=False)
    assert recovery.status is sl.Status.UNIQUE
    assert label_error(recovery, y) < 1e-5


def test_mistakes_are_named(trained, shares):
    (share,), _ = shares(data.Hard(), 1)
    with pytest.raises(MissingGradient, match=r"classifier\.weight"):
        sl.recover_label(trained, share.without("classifier.weight"))
    with pytest.raises(NonFinite, match=r"classifier\.weight"):
        sl.recover_label(trained, share.map(lambda _, g: g * math.nan))
    broken = share.map(lambda n, g: g / 0 if n == "features.0.bias" else g)
    with pytest.raises(NonFinite, match=r"features\.0\.bias"):
        sl.recover_label(trained, broken)
    with pytest.raises(ShareError, match="should have its parameter's shape"):
        sl.recover_label(trained, share.map(lambda _, g: g.T if g.ndim == 2 else g))
    with pytest.raises(HeadNotFound):
        sl.recover_label(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()), share)
    with pytest.raises(ShareError, match="scale"):
        sl.recover_label(trained, share, scale="?")  # type: ignore[arg-type]
    with pytest.raises(ShareError, match="expected a GradientShare, got dict"):
        sl.recover_label(trained, dict(share))  # type: ignore[arg-type]
    with pytest.raises(LabelError, match="tolerance"):
        sl.recover_label(trained, share, tolerance=-1)
    assert sl.recover_labels(trained, []) == ()
