"""Labels from noisy shares: what is said, and whether it is so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import softleak as sl
from softleak.audit.metrics import label_error
from softleak.core.families import Simplices
from softleak.core.subject import Subject
from softleak.defenses import Clip, Composed, GaussianNoise, LaplaceNoise
from softleak.labels.noisy.recover import recover_noisy
from softleak.labels.noisy.spectrum import Spectrum, Typical, features_of_noise
from softleak.paper import data, models


@pytest.fixture(scope="module")
def case(draw):
    """An untrained network, its head and evidence, and shares with their truths."""
    torch.manual_seed(0)
    model = models.mlp(3072, (256,)).eval()
    head = sl.Head.of(model)
    samples = draw(data.Smoothing(), 8)
    shares = [sl.capture(model, s.x, s.y) for s in samples]
    return model, head, sl.probe(model, (3, 32, 32), head=head), shares, [s.y for s in samples]


def recover(case, defense, **options):
    model, head, _, shares, truths = case
    options = {"family": sl.Smoothed(), "evidence": False, **options}
    sent = [defense(share) for share in shares]
    return list(zip(sl.recover_labels(model, sent, head=head, **options), truths, strict=True))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("kind", [GaussianNoise, LaplaceNoise])
@pytest.mark.parametrize("size", [1e-5, 1e-3])
def test_little_noise_leaves_the_label(case, kind, size):
    found = recover(case, kind(size, generator()))
    for recovery, y in found:
        assert recovery.status is sl.Status.PROBABLE
        assert recovery.noise == pytest.approx(size, rel=0.1)
        assert recovery.class_index == int(y.argmax())
        assert recovery.confidence > 0.99
        assert float(recovery.label.sum()) == pytest.approx(1)
        assert float(recovery.label.min()) >= 0
    inside = sum(label_error(recovery, y) <= recovery.error for recovery, y in found)
    assert inside >= 5  # of eight, at 90 % each: less often in one case of two hundred
    assert sum(label_error(r, y) for r, y in found) / len(found) < 100 * size


def test_a_mix_that_nobody_smoothed_is_not_read_as_a_smoothed_one(case, draw):
    """Its other entries are zero, which a density over smoothed mixes would never say."""
    model, head, *_ = case
    left, inside = [], 0
    for index, sample in enumerate(draw(data.Hard(), 12)):
        y = torch.zeros(10)
        y[index % 10], y[(index + 3) % 10] = 0.6, 0.4
        share = GaussianNoise(1e-3, index)(sl.capture(model, sample.x, y))
        found = sl.recover_label(model, share, head=head, evidence=False)
        left.append(float(found.label.masked_fill(y > 0, 0.0).sum()))
        low, high = found.interval
        inside += int(((low <= y) & (y <= high))[y > 0].sum())
    assert sorted(left)[6] < 1e-4  # a density over smoothed mixes leaves 1e-3
    assert inside >= 16  # of 24 at 90 % each, two by two: less often in one case of a hundred


DEGENERATE = {
    "rows alike": (1.0, torch.ones(10, 8), "known", "all rows of the head's gradient are alike"),
    "a head of zeros": (0.0, torch.linspace(-1, 1, 80).sin().view(10, 8) ** 3, "unknown", ""),
}


@pytest.mark.parametrize(("weight", "G", "scale", "words"), DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_heads_and_shares_are_no_errors(weight, G, scale, words):
    head = torch.nn.Linear(8, 10, bias=False)
    with torch.no_grad():
        head.weight.mul_(weight)
    found_head = sl.Head.of(head)
    subject = sl.Subject(head, found_head).given(Typical.of, Typical.unknown(found_head))
    share, knowledge = sl.GradientShare({"weight": G}), sl.Knowledge(scale=scale, head_only=True)
    found = recover_noisy(subject, knowledge, share, G.double(), Spectrum.of(G.double()))
    assert words in found.message


def test_a_fault_of_ours_is_no_finding(case, monkeypatch):
    def faulty(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr("softleak.labels.otherwise.recover_noisy", faulty)
    with pytest.raises(IndexError):
        recover(case, GaussianNoise(1e-3, 5))


def test_an_input_of_one_entry_is_looked_at_once():
    model = torch.nn.Linear(1, 3)
    subject = Subject.of(model, (1,), head=sl.Head.of(model))
    assert features_of_noise(subject).shape == (16, 1)


def test_evidence_narrows_the_answer(case):
    noise = GaussianNoise(1e-3, 5)
    alone = recover(case, noise)
    helped = recover(case, noise, evidence=case[2])
    assert sum(r.error for r, _ in helped) < sum(r.error for r, _ in alone)
    assert sum(label_error(r, y) <= r.error for r, y in helped) >= 5


def test_an_arbitrary_label_is_found_by_evidence(case, draw):
    model, head, relations, *_ = case
    for sample in draw(data.Dirichlet(), 2):
        share = GaussianNoise(1e-5, 1)(sl.capture(model, sample.x, sample.y))
        recovery = sl.recover_label(model, share, evidence=relations, head=head)
        assert recovery.status is sl.Status.PROBABLE
        assert label_error(recovery, sample.y) < 0.01
        smoothed = sl.recover_label(model, share, family=sl.Smoothed(), head=head, evidence=False)
        assert smoothed.status is sl.Status.NO_SOLUTION


def test_clipping_and_noise_together(case):
    both = Composed((Clip(0.1), GaussianNoise(1e-5, generator())))
    for recovery, y in recover(case, both, scale="unknown"):
        assert recovery.status is sl.Status.PROBABLE
        assert recovery.class_index == int(y.argmax())
        assert label_error(recovery, y) <= 4 * recovery.error
        assert 0 < recovery.scale < 1


def test_much_noise_makes_a_guess_and_says_so(case):
    found = recover(case, GaussianNoise(10.0, generator()))
    assert all(recovery.status is sl.Status.GUESS for recovery, _ in found)
    assert all(recovery.confidence < 0.9 for recovery, _ in found)


def test_a_noisy_row_costs_nothing(case):
    head, name = case[1], case[1].weight_name

    def one_row(share: sl.GradientShare) -> sl.GradientShare:
        noisy = GaussianNoise(0.5, 2)(share)[name]
        chosen = (torch.arange(head.classes) == 4)[:, None]
        return share.map(lambda n, g: torch.where(chosen, noisy, g) if n == name else g)

    for recovery, y in recover(case, one_row):
        assert recovery.status is sl.Status.UNIQUE
        assert "row 4" in recovery.message
        assert label_error(recovery, y) < 1e-4


@pytest.mark.parametrize("roundings", [-3, 3])
def test_a_noisy_row_costs_nothing_however_the_client_adds(roundings):
    """A row is mended by the sum of the others, which is zero up to the client's rounding alone.

    Without AVX2, float32 probabilities sum to one up to 2.6 eps in 200 shares.
    """
    head = torch.nn.Linear(64, 10, bias=False)
    sum_of_p = 1 + roundings * torch.finfo(torch.float32).eps
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.rand(64, generator=generator), data.smooth(seed % 10, 10, 0.1 + 0.03 * seed)
        p = head(x).detach().double().softmax(0) * sum_of_p
        G = torch.outer(p - y, x.double()).float()
        G[4] += 0.5 * torch.randn(64, generator=generator)
        share = sl.GradientShare({"weight": G})
        recovery = sl.recover_label(head, share, family=sl.Smoothed(), evidence=False)
        assert recovery.status is sl.Status.UNIQUE
        assert "row 4" in recovery.message
        assert label_error(recovery, y) <= min(recovery.error, 1e-4)


def test_several_samples_under_noise_are_no_single_one(case):
    model, head, _, shares, _ = case
    mean = shares[0].map(lambda n, g: (g + shares[1][n]) / 2)
    noisy = GaussianNoise(1e-4, 0)(mean)
    recovery = sl.recover_label(model, noisy, head=head, evidence=False)
    assert recovery.status is sl.Status.NOT_SINGLE
    assert recovery.samples == 2


def test_a_noisy_share_can_be_inverted(case, draw):
    model, _, _, shares, _ = case
    noisy = GaussianNoise(1e-5, 0)(shares[0])
    recovery = sl.recover_label(model, noisy, family=sl.Smoothed())
    inverted = sl.invert(model, noisy, recovery)
    truth = draw(data.Smoothing(), 8)[0].x
    assert float((inverted.input.view_as(truth) - truth).abs().mean()) < 0.1


class Odd:
    """A family that has what the contract requires, and nothing else."""

    def project(self, y: torch.Tensor) -> torch.Tensor:
        return sl.Smoothed().project(y)


class Even(Odd):
    """The same, with the simplices by which a noisy share is integrated."""

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        return sl.Smoothed().simplices(classes, likely)


class Wrong(Odd):
    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        return sl.Smoothed().simplices(classes + 1, likely)


def test_a_family_without_simplices_takes_no_other_share_with_it(case):
    model, head, _, shares, truths = case
    sent = [shares[0], GaussianNoise(1e-3, 0)(shares[1])]
    options = {"family": Odd(), "evidence": False, "head": head}
    clean, noisy = sl.recover_labels(model, sent, **options)
    alone = sl.recover_label(model, shares[0], **options)
    assert clean.status is alone.status is sl.Status.UNIQUE
    assert torch.equal(clean.label, alone.label)
    assert clean.error == alone.error
    assert label_error(clean, truths[0]) <= clean.error
    assert noisy.status is sl.Status.GUESS
    assert noisy.label is None
    assert noisy.noise == pytest.approx(1e-3, rel=0.1)
    assert "no method `simplices`" in noisy.message
    assert "Add simplices(classes, likely)" in noisy.message


def test_simplices_of_the_wrong_size_are_a_status_too(case):
    model, head, _, shares, _ = case
    noisy = GaussianNoise(1e-3, 0)(shares[0])
    found = sl.recover_label(model, noisy, family=Wrong(), evidence=False, head=head)
    assert found.status is sl.Status.GUESS
    assert "of 10 classes, got 11 classes" in found.message


def test_a_family_of_ones_own_with_simplices_is_integrated(case):
    noise = GaussianNoise(1e-3, 0)
    own, known = (recover(case, noise, family=f)[0][0] for f in (Even(), sl.Smoothed()))
    assert own.status is sl.Status.PROBABLE
    assert torch.equal(own.label, known.label)
    assert torch.equal(own.interval, known.interval)
