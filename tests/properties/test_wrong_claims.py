"""No claim is wrong: tens of updates of known truth for each kind that once had a false proof."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from softleak.audit import Options, Truth
from softleak.audit.report import CompositionFinding
from softleak.audit.several import read_composition
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.results import Status
from softleak.core.subject import Subject
from softleak.matching import GaussNewton
from softleak.matching.gauss_newton.certificate import find_look_alike
from softleak.matching.gauss_newton.equations import BatchKnowledge
from tests.integration import strangers as s
from tests.properties import twins
from tests.unit.batches.test_sure_networks import CLASSES, WIDTH, feature, smoothed, sure_head

SLOW = pytest.mark.slow


def audited(
    model: nn.Module, share: sl.GradientShare, samples: int | None = None, inputs: bool = False,
    x: Tensor | None = None,
) -> sl.AuditReport:  # fmt: skip
    """Return the audit of a share: matching is left out, because it takes too long."""
    known = Knowledge(samples=samples, is_gradient=True)
    asked = Options(known, inputs=inputs, views=False, seconds=0.0)
    return sl.audit(model, share, options=asked, truth=None if x is None else Truth(None, x))


def update(model: nn.Module, after: s.Tensors, shape: tuple[int, ...], lr: float | None):
    found = sl.GradientShare.from_update(model.state_dict(), after, lr=lr)
    return sl.GradientShare(found.gradients, shape, found.rounding, found.scale)


def composed(
    model: nn.Module, share: sl.GradientShare, samples: int | None = None
) -> CompositionFinding:
    """Return what the audit says of classes, without its attacks on every sample.

    A difference of checkpoints is known by its rounding: its rate is stated, and not its momentum.
    """
    known = Knowledge(samples=samples, is_gradient=True, scale=None if share.rounding else "known")
    return read_composition(Subject.of(model, share.input_shape), share, known)


def false_classes(found: CompositionFinding, y: Tensor) -> set[int]:
    """Return classes that are proved to be in an update and are of no sample."""
    return set(found.present) - set(y.flatten().tolist())


def excluded(found: CompositionFinding, y: Tensor) -> list[int]:
    """Return classes whose true number lies outside the bounds of their count."""
    counts, true = found.counts, y.bincount(minlength=s.CLASSES).tolist()
    if counts is None or not counts.low:
        return []
    bounds = zip(counts.low, true, counts.high, strict=True)
    return [c for c, (low, n, high) in enumerate(bounds) if not low <= n <= high]


def wrong(recovery: sl.Recovery, y: Tensor) -> bool:
    """Return whether a label is called UNIQUE, and none of these is within its error."""
    if recovery.status is not sl.Status.UNIQUE or recovery.label is None:
        return False
    off = (recovery.label.cpu() - y.double().reshape(-1, y.shape[-1])).abs().sum(-1).min()
    return float(off) > max(recovery.error, 1e-6)


# 11. Classes proved present.
@pytest.mark.parametrize("tries", [24, pytest.param(600, marks=SLOW)])
@pytest.mark.parametrize("weight", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("factory", [s.classifier, s.bare], ids=["bias", "bare"])
def test_smoothing_makes_no_class_present_and_bounds_no_count_wrongly(factory, weight, tries):
    claimed, false, outside = 0, [], []
    for seed in range(tries):
        model = s.made(factory, seed, gain=(1.0, 3.0, 10.0, 30.0)[seed % 4])
        x = torch.randn(16, s.WIDTH)
        with torch.no_grad():  # a network that is right of most samples, and one that is not
            y = torch.randint(5, (16,)) if seed % 3 == 0 else model(x).argmax(-1)
        share = sl.GradientShare(s.gradient(model, x, y, s.smoothing(weight)), (s.WIDTH,))
        found = composed(model, share, samples=16)
        claimed += len(found.present)
        false += [(seed, c) for c in false_classes(found, y)]
        outside += [(seed, c) for c in excluded(found, y)]
    assert not false, f"{len(false)} of {claimed} classes are of no sample"
    assert not outside, f"{len({seed for seed, _ in outside})} of {tries} bounds exclude the truth"


SIGNED = {
    "GELU": nn.GELU, "ELU": nn.ELU, "tanh": nn.Tanh, "leaky ReLU": nn.LeakyReLU, "SiLU": nn.SiLU,
}  # fmt: skip


def pooled(act: Callable[[], nn.Module], bias: bool = False) -> nn.Module:
    """Return a network whose features are the largest of many numbers: rarely below zero."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), act(), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        nn.Linear(12, s.CLASSES, bias=bias),
    )  # fmt: skip


@pytest.mark.parametrize("tries", [10, pytest.param(200, marks=SLOW)])
@pytest.mark.parametrize("act", SIGNED)
def test_features_that_were_not_negative_on_noise_may_be_on_quiet_inputs(act, tries):
    claimed, false = 0, []
    for seed in range(tries):
        torch.manual_seed(seed)
        model = pooled(SIGNED[act]).eval()
        for size, level in ((1.0, 0.0), (0.05, -0.3), (0.0, -0.3), (0.1, 0.0)):
            x, y = level + size * torch.randn(4, 1, 8, 8), torch.randint(3, (4,))
            share = sl.GradientShare(s.gradient(model, x, y), (1, 8, 8))
            found = composed(model, share)
            claimed += len(found.present)
            false += [(seed, size, c) for c in false_classes(found, y)]
    assert not false, f"{len(false)} of {claimed} classes are of no sample"


def test_features_behind_a_relu_still_prove_classes():
    proved = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model = pooled(nn.ReLU).eval()
        x, y = torch.randn(4, 1, 8, 8), torch.randint(3, (4,))
        found = composed(model, sl.GradientShare(s.gradient(model, x, y), (1, 8, 8)))
        assert not false_classes(found, y)
        proved += len(found.present)
    assert proved >= 6


# 12. Batches at a scale that nobody stated.
LABELS = {"smoothed": sl.Smoothed(), "any simple": None, "mixed": sl.SmoothedMixed(2)}


def sure_batch(kind: str, lead: float, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, two samples that it is sure of, and their soft labels."""
    source, model = torch.Generator().manual_seed(seed), sure_head(lead)
    first, second, third, fourth = torch.randperm(CLASSES, generator=source)[:4].tolist()
    sizes = (0.5 + torch.rand(2, generator=source)).tolist()
    x = torch.stack([feature(first, sizes[0], 2 * seed), feature(second, sizes[1], 2 * seed + 1)])
    weights = (0.1 + 0.3 * torch.rand(2, generator=source)).tolist()
    y = torch.stack([smoothed(first, weights[0]), smoothed(second, weights[1])])
    if kind == "mixed":
        y = torch.zeros(2, CLASSES)
        y[0, first], y[0, third], y[1, second], y[1, fourth] = 0.6, 0.4, 0.7, 0.3
    return model, x, y.float()


@pytest.mark.parametrize("tries", [2, pytest.param(40, marks=SLOW)])
@pytest.mark.parametrize("kind", ["smoothed", "any simple", pytest.param("mixed", marks=SLOW)])
@pytest.mark.parametrize("lead", [20.0, 60.0])
def test_a_batch_at_an_unstated_scale_has_no_wrong_label(kind, lead, tries):
    proved, false = 0, []
    for seed in range(tries):
        model, x, y = sure_batch(kind, lead, seed)
        for factor in (0.5, 0.9, 1.3):
            share = sl.GradientShare(s.gradient(model, x, y), (WIDTH,)).scaled(factor)
            known = Knowledge(LABELS[kind], samples=2)
            found = read_batch(Subject.of(model, (WIDTH,)), share, known)
            proved += len(found.proved)
            false += [(seed, factor) for one in found.proved if wrong(one, y)]
    assert not false, f"{len(false)} of {proved} labels are of no sample"


# 13. Proved inputs with a twin.
def look_alike(model: nn.Module, x: Tensor, y: Tensor) -> str:
    """Return what the certificate finds at the true input that leaves what is sent as it is."""
    subject, share = Subject.of(model, tuple(x.shape)), sl.capture(model, x, y)
    exact = GaussNewton().model(subject, tuple(subject.parameters), (1, *x.shape)).exact
    equations = BatchKnowledge(y[None]).equations(exact, share, torch.float64)
    z, error = exact.pack(x[None], y[None]), torch.full_like(x[None], 1e-9)
    return find_look_alike(equations, z, error, 10.0)


@pytest.mark.parametrize("tries", [3, pytest.param(120, marks=SLOW)])
@pytest.mark.parametrize("kind", [one for one in twins.KINDS if one not in twins.HIDDEN])
def test_the_certificate_finds_the_twin_of_an_input(kind, tries):
    for seed in range(tries):
        model, x, twin = twins.drawn(kind, seed)
        y = torch.randn(5).softmax(0).double()
        assert bool(look_alike(model, x, y)) is (twin is not None)


@pytest.mark.parametrize("tries", [pytest.param(60, marks=SLOW)])
@pytest.mark.parametrize("kind", twins.PAIRED)
def test_an_input_with_a_twin_is_not_proved(kind, tries):
    proved, others = [], 0
    for seed in range(tries):
        model, x, twin = twins.drawn(kind, seed)
        y = torch.randn(5).softmax(0).double()
        share, other = (sl.capture(model, one, y) for one in (x, twin))
        for name in share:
            torch.testing.assert_close(share[name], other[name], rtol=1e-9, atol=1e-12)
        recovery = sl.recover_label(model, share)
        found = sl.reconstruct(model, share, recovery, optimiser=GaussNewton(), restarts=2)
        if found.status is Status.PROVED:
            proved.append(seed)
            others += float((found.input - x).abs().max()) > 1e-3
    assert not proved, f"{len(proved)} of {tries} proved, {others} of them the twin"


# 14. Local training with a changing rate.
SCHEDULES = {
    "falling": (1.1, 1.05, 1.0, 0.95, 0.9),
    "halved": (1.5, 1.25, 1.0, 0.75, 0.5),
    "two": (1.05, 0.95),
}


KINDS = ("mixed", "smoothed", "arbitrary")


@pytest.mark.parametrize(
    ("schedule", "mean", "kinds", "tries"),
    [
        ("two", 0.03, KINDS[:1], 2),
        *(
            pytest.param(one, mean, KINDS, 40, marks=SLOW)
            for one in SCHEDULES
            for mean in (0.03, 0.1, 0.3)
        ),
    ],
)
def test_a_rate_that_changes_is_not_bounded_as_one_that_stays(schedule, mean, kinds, tries):
    proved, false, worst = 0, [], 0.0
    for seed in range(tries):
        for kind in kinds:
            model = s.made((s.classifier, s.bare)[seed // 2 % 2], seed, gain=3.0)
            model[0].requires_grad_(False)
            source = torch.Generator().manual_seed(seed)
            x = torch.randn(1, s.WIDTH, generator=source)
            hard = F.one_hot(torch.randint(10, (1,), generator=source), s.CLASSES).float()
            y = {
                "mixed": 0.6 * hard + 0.4 * hard.roll(1),
                "smoothed": 0.9 * hard + 0.1 / s.CLASSES,
                "arbitrary": torch.randn(1, s.CLASSES, generator=source).softmax(-1),
            }[kind]
            rates = [mean * part for part in SCHEDULES[schedule]]
            after = s.trained(
                model, [(x, y)] * len(rates),
                lambda p: torch.optim.SGD([q for q in p if q.requires_grad], 1.0), rates=rates,
            )  # fmt: skip
            client = sl.Client(lr=sum(rates) / len(rates), steps=len(rates))
            found = sl.GradientShare.from_update(model.state_dict(), after, client=client)
            held = {n: g for n, g in found.items() if n.startswith("2.")}
            share = sl.GradientShare(held, (s.WIDTH,), found.rounding, made_by=found.made_by)
            for scale in (None, "known"):
                said = sl.GradientShare(
                    share.gradients, share.input_shape, share.rounding, scale, made_by=share.made_by
                )
                recovery = sl.recover_label(model, said, evidence=False)
                proved += recovery.status is sl.Status.UNIQUE
                if wrong(recovery, y):
                    false.append((seed, kind, scale))
                    off = float((recovery.label - y[0]).abs().sum())
                    worst = max(worst, off / recovery.error)
    assert not false, f"{len(false)} of {proved} labels off by up to {worst:.3g} times the bound"


# 15. Sure networks.
@pytest.mark.parametrize("tries", [3, pytest.param(120, marks=SLOW)])
@pytest.mark.parametrize("lead", [10.0, 60.0, 120.0])
def test_a_batch_of_a_sure_network_has_a_status_and_raises_nothing(lead, tries):
    for seed in range(tries):
        source, model = torch.Generator().manual_seed(seed), sure_head(lead)
        classes = torch.randint(CLASSES, (3,), generator=source)
        sizes = (0.3 + torch.rand(3, generator=source)).tolist()
        drawn = enumerate(zip(classes.tolist(), sizes, strict=True))
        x = torch.stack([feature(c, size, 3 * seed + i) for i, (c, size) in drawn])
        y = torch.where(torch.rand(3, generator=source) < 0.5, classes, classes.roll(1))
        share = sl.GradientShare(s.gradient(model, x, y), (WIDTH,))
        found = sl.recover_batch(model, share, size=3)
        assert isinstance(found.status, sl.Status)
        assert not [one for one in found.proved if wrong(one, F.one_hot(y, CLASSES))]


# 16. Bounded work.
@pytest.mark.parametrize("constant", [0.1, 0.0])
@pytest.mark.parametrize("evidence", [True, False], ids=["whole share", "head only"])
def test_a_head_of_equal_rows_takes_no_longer_than_another(constant, evidence):
    torch.manual_seed(0)
    model = s.bare().eval()
    nn.init.constant_(model[2].weight, constant)
    start = time.process_time()
    recovery = sl.recover_label(model, sl.capture(model, torch.randn(20), 3), evidence=evidence)
    assert time.process_time() - start < 5
    assert len(recovery.solutions) <= 100
    assert not wrong(recovery, F.one_hot(torch.tensor(3), s.CLASSES))


# 17. One step of AdamW with its default decay.
@pytest.mark.parametrize("tries", [24, pytest.param(500, marks=SLOW)])
@pytest.mark.parametrize("factory", [s.bare, s.classifier], ids=["bare", "bias"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_decoupled_decay_is_no_sign_of_a_class(factory, batch, tries):
    claimed, false = 0, []
    for seed in range(tries):
        model = s.made(factory, seed)
        x, y = torch.randn(batch, s.WIDTH), torch.randint(s.CLASSES, (batch,))
        after = s.trained(model, [(x, y)], lambda p: torch.optim.AdamW(p, 1e-3))
        found = composed(model, update(model, after, (s.WIDTH,), 1e-3))
        claimed += len(found.present)
        false += [(seed, c) for c in false_classes(found, y)]
    updates = len({seed for seed, _ in false})
    assert not false, f"{len(false)} of {claimed} classes wrong, in {updates} of {tries} updates"


# 18. Factors per tensor.
def another_rate_for_biases(parameters):
    held = list(parameters)
    return torch.optim.SGD(
        [
            {"params": [p for p in held if p.ndim > 1], "lr": 0.1},
            {"params": [p for p in held if p.ndim == 1], "lr": 0.2},
        ]
    )


PER_TENSOR = {
    "layer-wise clipping": (lambda p: torch.optim.SGD(p, 0.1), s.clip_each_tensor),
    "LARS": (lambda p: torch.optim.SGD(p, 0.1), s.trust_ratios),
    "biases faster": (another_rate_for_biases, None),
}


@pytest.mark.parametrize("tries", [5, pytest.param(100, marks=SLOW)])
@pytest.mark.parametrize("how", PER_TENSOR)
@pytest.mark.parametrize("factory", [s.smooth, s.classifier], ids=["tanh", "ReLU"])
@pytest.mark.parametrize("lr", [0.1, None], ids=["rate", "no rate"])
def test_a_quotient_behind_factors_per_tensor_is_no_input(factory, how, lr, tries):
    false, good = [], 0
    optimiser, change = PER_TENSOR[how]
    for seed in range(tries):
        model = s.made(factory, seed)
        x, y = torch.rand(1, s.WIDTH), torch.tensor([seed % s.CLASSES])
        after = s.trained(model, [(x, y)], optimiser, change=change)
        share = update(model, after, (s.WIDTH,), lr)
        report = audited(model, share, inputs=True, x=x[0])
        if report.input.leaked:
            true = report.score.psnr
            false += [(seed, round(report.input.psnr_predicted), round(true))] if true < 20 else []
            good += true >= 20
        assert not wrong(report.label.recovery, F.one_hot(y, s.CLASSES))
        assert not false_classes(report.composition, y)
    assert not false, f"{len(false)} of {tries} inputs wrong (seed, predicted, true dB): {false}"
