import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit.metrics import psnr
from softleak.core.errors import ModelError, OptionError
from softleak.core.results import Status
from softleak.matching import (
    L2,
    LBFGS,
    Adam,
    Cosine,
    GivenLabel,
    Image,
    Noise,
    RandomLabel,
    RecoveredLabel,
    TotalVariation,
    reconstruct,
    reconstruct_many,
)
from softleak.matching.reconstruction import TerminalWatch
from softleak.paper import data, models
from softleak.paper.data import CIFAR10_NORM
from tests.unit.matching.nets import small, victims

SHORT = LBFGS(steps=3, inner=10)
# Thirty evaluations of L-BFGS multiply rounding by up to a million: between batches of another size
# float64 inputs differ by up to 3e-10 (twelve shares, with and without AVX2, one and two threads),
# float32 ones by up to 0.15, which is why float64 is compared.
SHORT_ROUNDING = 1e-6


@pytest.mark.parametrize("objective", [L2(), Cosine(), L2(alpha=0.0, beta=2.0)], ids=str)
def test_the_input_is_found_from_noise(objective):
    model = small()
    inputs, labels, shares = victims(model, 3)
    found = reconstruct_many(
        model, shares, sl.recover_labels(model, shares), objective=objective, priors=(),
        optimiser=LBFGS(steps=150, progress=1e-3),
    )  # fmt: skip
    for result, x, y in zip(found, inputs, labels, strict=True):
        assert psnr(result.input, x) > 30
        assert torch.allclose(result.label.double(), y.double(), atol=1e-4)
        assert result.misfit < 1e-2


@pytest.mark.parametrize(
    ("name", "train"),
    [("lenet", False), ("resnet18", False), ("resnet20", True), ("vgg", False), ("vit", False)],
)
def test_at_the_truth_nothing_remains_of_the_gradient(name, train, draw):
    """The gradient that is matched is the one a client sends, on every kind of network."""
    (sample,) = draw(data.Mixup(), 1)
    model = models.MODELS[name]().double().train(train)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = sample.x.double()
    share = sl.capture(model, x, sample.y)
    found = reconstruct(model, share, label=GivenLabel(sample.y), start=Image(x))
    assert found.status is Status.EXPLAINED
    assert found.misfit < 1e-12
    nudged = reconstruct(
        model, share, label=GivenLabel(sample.y), start=Image(x + 0.01 * torch.randn_like(x)),
        optimiser=LBFGS(steps=1, inner=4), objective=L2(),
    )  # fmt: skip
    assert 1e-9 < nudged.misfit < 1
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_one_share_or_many_in_their_order():
    model = small().double()
    _, labels, shares = victims(model, 3)
    sources = [GivenLabel(y) for y in labels]
    many = reconstruct_many(model, shares, label=sources, optimiser=SHORT, objective=L2())
    for share, source, expected in zip(shares, sources, many, strict=True):
        alone = reconstruct(model, share, label=source, optimiser=SHORT, objective=L2())
        assert alone.input.dtype == torch.double
        assert torch.allclose(alone.input, expected.input, atol=SHORT_ROUNDING)
    assert reconstruct_many(model, []) == ()


def test_little_memory_changes_nothing_but_the_batches():
    model = small().double()
    _, labels, shares = victims(model, 4)
    sources = [GivenLabel(y) for y in labels]
    options = {"label": sources, "optimiser": SHORT, "objective": L2()}
    whole, parts = (reconstruct_many(model, shares, memory=m, **options) for m in (2 << 30, 1))
    for a, b in zip(whole, parts, strict=True):
        assert torch.allclose(a.input, b.input, atol=SHORT_ROUNDING)


def test_what_cannot_be_matched_is_marked_and_disturbs_nobody():
    model = small()
    _, labels, shares = victims(model, 2)
    broken = shares[0].map(lambda _, g: g * torch.nan)
    zero = shares[0].map(lambda _, g: g * 0)
    huge = shares[0].map(lambda _, g: g * 3e18)
    mixed = [shares[0], broken, zero, huge, shares[1]]
    sources = [GivenLabel(y) for y in (labels[0], labels[0], labels[0], labels[0], labels[1])]
    found = reconstruct_many(model, mixed, label=sources, objective=L2(), optimiser=Adam(steps=20))
    alone = reconstruct_many(
        model, shares, label=[sources[0], sources[4]], objective=L2(), optimiser=Adam(steps=20)
    )
    assert [r.status for r in found[1:4]] == [
        Status.NON_FINITE, Status.ZERO_GRADIENT, Status.DIVERGED,
    ]  # fmt: skip
    assert found[1].input is None
    assert torch.allclose(found[0].input, alone[0].input, atol=1e-4)
    assert torch.allclose(found[4].input, alone[1].input, atol=1e-4)


def test_without_a_recovered_label_there_is_nothing_to_match_with():
    model = small()
    _, _, shares = victims(model, 1)
    assert reconstruct(model, shares[0]).status is Status.NO_LABEL
    given = GivenLabel(torch.full((4,), 0.25))
    asked = reconstruct(model, shares[0], label=given, objective=L2(beta=1.0))
    assert asked.status is Status.NO_LABEL


def test_restarts_share_the_evaluations_of_one():
    model = small()
    _, labels, shares = victims(model, 1)
    source = GivenLabel(labels[0])
    for optimiser in (LBFGS(steps=20, progress=0.0), Adam(steps=400)):
        found = reconstruct(
            model, shares[0], label=source, objective=L2(), optimiser=optimiser, restarts=3
        )
        assert found.evaluations <= optimiser.evaluations
    with pytest.raises(OptionError, match="0 to 8 restarts"):
        reconstruct(model, shares[0], restarts=9)


def test_a_free_label_moves_and_stays_a_label():
    model = small()
    _, _, shares = victims(model, 1)
    recovery = sl.recover_label(model, shares[0])
    for source in (RandomLabel(), RecoveredLabel(free=True)):
        found = reconstruct(model, shares[0], recovery, label=source, optimiser=Adam(steps=30))
        assert float(found.label.sum()) == pytest.approx(1, abs=1e-5)
        assert bool((found.label >= 0).all())
        start = recovery.label if source == RecoveredLabel(free=True) else None
        assert start is None or not torch.allclose(found.label.double(), start, atol=1e-6)


def test_a_missing_layer_is_done_without():
    model = small()
    _, labels, shares = victims(model, 1)
    some = shares[0].without("0.bias", "2.weight")
    found = reconstruct(model, some, label=GivenLabel(labels[0]), optimiser=SHORT, objective=L2())
    assert found.misfit < 1


def test_shares_of_another_model_have_a_status_that_says_so():
    model = small()
    _, labels, (share,) = victims(model, 1)
    given = {"label": GivenLabel(labels[0]), "optimiser": SHORT}
    unfit = {
        r"shape (6, 1, 3, 3), got (2, 2)": sl.GradientShare(
            {"0.weight": torch.ones(2, 2)}, (1, 8, 8)
        ),
        "no gradient of the model": sl.GradientShare({"x": torch.ones(2)}, (1, 8, 8)),
        "pass input_shape": sl.GradientShare(share.gradients),
        "does not take one input of shape (1, 9, 9)": sl.GradientShare(share.gradients, (1, 9, 9)),
    }
    found = reconstruct_many(model, [*unfit.values(), share], **given)
    for message, one in zip(unfit, found, strict=False):
        assert one.status is Status.UNFIT
        assert message in one.message
        assert one.input is None
    assert found[-1].status is Status.EXHAUSTED
    alone = reconstruct(model, unfit["pass input_shape"], head=sl.Head.of(model), **given)
    assert alone.status is Status.UNFIT


def test_a_label_or_start_of_another_size_ends_its_share_alone():
    model = small()
    _, labels, (share,) = victims(model, 1)
    y = labels[0]
    found = reconstruct_many(
        model, [share] * 4, optimiser=SHORT,
        label=[GivenLabel(y[:3]), GivenLabel(y), GivenLabel(y), GivenLabel(y)],
        start=[Noise(), Image(torch.zeros(2, 2)), Image(torch.full((1, 8, 8), torch.nan)), Noise()],
    )  # fmt: skip
    assert [one.status is Status.UNFIT for one in found] == [True, True, True, False]
    assert ["4 entries" in found[0].message, "(2, 2)" in found[1].message] == [True, True]


def test_a_shape_the_model_does_not_take_is_said():
    model = small()
    _, labels, (share,) = victims(model, 1)
    with pytest.raises(ModelError, match=r"does not take one input of shape \(1, 9, 9\)"):
        reconstruct(model, share, label=GivenLabel(labels[0]), input_shape=(1, 9, 9))


@dataclass(frozen=True)
class Interrupting:
    """A prior during whose computation somebody presses Ctrl-C."""

    def __call__(self, x):
        signal.raise_signal(signal.SIGINT)
        return x.sum() * 0


def test_an_interruption_returns_the_best_so_far():
    model = small()
    _, labels, shares = victims(model, 1)
    before = signal.getsignal(signal.SIGINT)
    settings = {
        "label": GivenLabel(labels[0]), "priors": [Interrupting()], "objective": L2(),
        "optimiser": LBFGS(steps=100),
    }  # fmt: skip
    with TerminalWatch() as watch:
        found = reconstruct(model, shares[0], watch=watch, **settings)
    assert found.status is Status.INTERRUPTED
    assert found.input is not None
    assert found.evaluations < 5
    assert signal.getsignal(signal.SIGINT) is before


def test_unless_asked_no_signal_is_handled(interruptible):
    model = small()
    _, labels, shares = victims(model, 1)
    with pytest.raises(KeyboardInterrupt):
        reconstruct(
            model, shares[0], label=GivenLabel(labels[0]), priors=[Interrupting()], optimiser=SHORT
        )


def test_from_the_exact_inversion_nothing_gets_worse(draw):
    model, drawn = models.lenet(image=16).eval(), draw(data.Smoothing(), 2, size=16)
    shares = [sl.capture(model, s.x, s.y) for s in drawn]
    recoveries = sl.recover_labels(model, shares)
    inputs = [
        sl.invert(model, share, recovery).input
        for share, recovery in zip(shares, recoveries, strict=True)
    ]
    found = reconstruct_many(
        model, shares, recoveries, start=[Image(x) for x in inputs], objective=L2(),
        optimiser=SHORT,
    )  # fmt: skip
    for sample, before, after in zip(drawn, inputs, found, strict=True):
        truth = CIFAR10_NORM.invert(sample.x)
        worth = [psnr(CIFAR10_NORM.invert(x), truth) for x in (before, after.input)]
        assert worth[1] >= worth[0] - 1e-6


def test_a_start_that_gains_no_more_than_rounding_is_kept_to_the_last_digit():
    model = small()
    inputs, labels, shares = victims(model, 1)
    near = inputs[0].double() + 1e-5 * torch.randn(1, 8, 8, dtype=torch.double)
    source = GivenLabel(labels[0])
    asked = {"label": source, "start": Image(near), "objective": L2()}
    idle = reconstruct(model, shares[0], optimiser=LBFGS(steps=1, inner=1), **asked)
    assert torch.equal(idle.input, near)
    busy = reconstruct(model, shares[0], optimiser=LBFGS(steps=20), **asked)
    assert busy.misfit < idle.misfit
    assert psnr(busy.input, inputs[0]) > psnr(near, inputs[0])


def test_a_start_that_explains_the_gradient_has_its_loss():
    model = small()
    inputs, labels, shares = victims(model, 1)
    asked = {"label": GivenLabel(labels[0]), "start": Image(inputs[0]), "objective": L2()}
    found = reconstruct(model, shares[0], optimiser=SHORT, **asked)
    assert found.status is Status.EXPLAINED
    assert found.loss < 1e-10


@pytest.mark.parametrize("shape", [(20,), (1, 20), (20, 1, 1)], ids=str)
def test_inputs_that_are_no_images_are_matched_too(shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.GELU(), nn.Linear(16, 3))
    x = torch.randn(shape)
    share = sl.capture(model, x, 1)
    for priors in (None, [TotalVariation(1e-4)]):
        found = reconstruct(
            model, share, label=GivenLabel(torch.eye(3)[1]), objective=L2(),
            optimiser=LBFGS(steps=30), priors=priors,
        )  # fmt: skip
        assert found.misfit < 0.1


WRONG = {
    "a GradientShare, got str": {"shares": {"0.weight": torch.zeros(2)}},
    r"an objective such as L2\(\), got the class L2": {"objective": L2},
    r"an optimiser such as .*, got the class Adam": {"optimiser": Adam},
    "a start such as .*, got Tensor": {"start": torch.zeros(1, 8, 8)},
    "a label source such as .*, got Tensor": {"label": torch.ones(4) / 4},
    r"one recovery per share \(1\), got 2": {"recoveries": [None, None]},
    "one start for all or one for each of 1 shares, got 2": {"start": [Noise(), Noise()]},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_of_another_kind_is_named(message):
    model = small()
    shares = victims(model, 1)[2]
    with pytest.raises(OptionError, match=message):
        reconstruct_many(model, **{"shares": shares, **WRONG[message]})


def test_one_share_and_many_are_two_functions():
    model = small()
    shares = victims(model, 2)[2]
    with pytest.raises(OptionError, match=r"got a list of 2; use reconstruct_many\("):
        reconstruct(model, shares)
    with pytest.raises(OptionError, match=r"got one GradientShare; use reconstruct\("):
        reconstruct_many(model, shares[0])


def test_a_mask_nobody_knows_is_not_guessed():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 4)).train()
    share = victims(model, 1)[2][0]
    with pytest.raises(ModelError, match=r"Dropout.*train mode.*model\.eval\(\)"):
        reconstruct(model, share, label=RandomLabel())
    assert reconstruct(model.eval(), share, label=RandomLabel(), optimiser=SHORT).input is not None


def test_without_the_head_something_else_has_to_be_there():
    model = small()
    share = victims(model, 1)[2][0]
    alone = sl.GradientShare({"5.weight": share["5.weight"]}, share.input_shape)
    found = reconstruct(model, alone, sl.recover_label(model, share), objective=L2(0.0, 1.0))
    assert found.status is Status.UNFIT
    assert "alpha=0" in found.message


class HeadFirst(nn.Module):
    """Defined in another order than it runs, for inputs that no guess hits."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.embed = nn.Linear(6, 3), nn.Linear(7, 6)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)).mean(1))


def test_a_shape_that_is_said_serves_to_find_the_head():
    torch.manual_seed(0)
    model = HeadFirst()
    share = sl.capture(model, torch.randn(5, 7), 1)
    bare = sl.GradientShare(share.gradients)
    found = reconstruct(
        model, bare, label=GivenLabel(torch.eye(3)[1]), optimiser=SHORT, input_shape=(5, 7)
    )
    assert found.input.shape == (5, 7)


@pytest.mark.slow  # a minute of compiling
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no compiler")
def test_compiled_it_is_the_same_to_within_rounding():
    model = small()
    _, labels, shares = victims(model, 2)
    plain, fast = (
        reconstruct_many(
            model, shares, label=[GivenLabel(y) for y in labels], optimiser=Adam(steps=5),
            compiled=compiled,
        )
        for compiled in (False, True)
    )  # fmt: skip
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(one.input, other.input, rtol=1e-4, atol=1e-4)
        assert other.loss == pytest.approx(one.loss, rel=1e-3)


ALONE = """
import torch
from torch import nn
import softleak as sl
from softleak.core.errors import OptionError
from softleak.matching import Adam, GivenLabel
model, y = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2)), [0.3, 0.7]
share = sl.capture(model, torch.ones(1, 2, 2), y)
try:
    sl.reconstruct(
        model, share, label=GivenLabel(torch.tensor(y)), optimiser=Adam(steps=2), compiled=True
    )
except OptionError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_a_compiler_compiling_is_refused_in_a_line(tmp_path):
    alone = {**os.environ, "PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=alone, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "could not be compiled" in done.stdout
    assert "C++ compiler" in done.stdout
