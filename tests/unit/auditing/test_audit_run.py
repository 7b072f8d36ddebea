from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import Leak, Method, Options, State, Truth, audit, prepared
from softleak.audit.report import LEAK_LABEL_ERROR
from softleak.core.errors import DataError, MissingGradient, ShareError
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.defenses import GaussianNoise
from softleak.paper import data, models
from softleak.present.words import headline, input_words, label_words


def test_a_share_and_its_truth(trained, draw):
    (sample,) = draw(data.Dirichlet(), 1)
    report = audit(
        trained,
        sl.capture(trained, sample.x, sample.y),
        options=Options(normalisation=data.CIFAR10_NORM),
        truth=Truth(sample.y, sample.x),
    )
    assert report.leaks == frozenset(Leak)
    assert report.label.proved == "UNIQUE"
    assert report.input.method == Method.INVERSION
    assert report.score.label_error < 1e-3
    assert report.score.psnr > 60
    assert report.score.psnr == pytest.approx(report.input.psnr_predicted, abs=6)
    assert [layer.name for layer in report.input.layers][-1] == "features.0"
    assert "the input itself" in headline(report)


def test_the_answer_does_not_depend_on_the_truth(trained, draw):
    first, second = draw(data.Smoothing(), 2)
    share, options = sl.capture(trained, first.x, first.y), Options(inputs=False)
    alone = audit(trained, share, options=options)
    misled = audit(trained, share, options=options, truth=Truth(second.y, second.x))
    assert torch.equal(alone.label.recovery.label, misled.label.recovery.label)
    assert alone.leaks == misled.leaks
    assert misled.score.label_error > 1e-2


def test_without_normalisation_the_error_is_relative_to_the_range(draw):
    (sample,) = draw(data.Hard(), 1, size=16)
    model = models.lenet(image=16).eval()
    share = sl.capture(model, sample.x, sample.y)
    report = audit(model, share, truth=Truth(input=sample.x))
    assert float(report.input.pixels.min()) == pytest.approx(0, abs=1e-9)
    assert float(report.input.pixels.max()) == pytest.approx(1, abs=1e-9)
    assert report.score.psnr == pytest.approx(report.input.psnr_predicted, abs=6)


def test_a_model_that_is_no_chain_says_so(draw):
    model = models.resnet20().eval()
    (sample,) = draw(data.Hard(), 1)
    share = sl.capture(model, sample.x, sample.y)
    report = audit(model, share, options=Options(seconds=0.0))
    assert report.label.proved == "UNIQUE"
    assert report.input.method == Method.NONE
    assert not report.input.leaked
    assert report.states[Leak.INPUT] is State.NOT_ATTACKED
    assert input_words(report).startswith("not attacked: ")
    assert headline(report).endswith("Not attacked: input.")


def test_every_sample_of_an_update_of_two_is_proved(trained, draw):
    samples = draw(data.Hard(), 2)
    x, y = torch.stack([s.x for s in samples]), torch.stack([s.y for s in samples])
    share = sl.capture(trained, x.reshape(2, 3, 32, 32), y)
    # Several samples can look like one; these two are of one class, which is given away.
    assert audit(trained, share).leaks == {Leak.COMPOSITION}
    report = audit(trained, share, options=Options(Knowledge(samples=2), seconds=0.0))
    assert report.label.proved == "UNIQUE"  # of each, as of a sample alone
    assert report.leaks == frozenset(Leak) - {Leak.INPUT}
    assert report.unattacked == {Leak.INPUT}
    assert set(report.composition.present) == {int(s.y.argmax()) for s in samples}
    found = torch.stack([one.label for one in report.label.samples])
    assert float(torch.cdist(y.double(), found, p=1).amin(1).max()) < 1e-4
    assert report.view is None
    assert "the exact labels and the features before the last layer of both samples" in headline(
        report
    )
    assert headline(report).endswith("Not attacked: input.")
    assert "proved of both samples" in label_words(report, ())
    assert any("2 samples, as was said" in said for said in report.assumptions)


def test_a_sum_of_two_gradients_proves_classes_and_no_label(trained, draw):
    samples = draw(data.Hard(), 2)
    shares = [sl.capture(trained, s.x, s.y) for s in samples]
    both = sl.GradientShare({n: shares[0][n] + shares[1][n] for n in shares[0]}, (3, 32, 32))
    report = audit(trained, both)
    (index,) = {int(s.y.argmax()) for s in samples}
    assert report.composition.present == report.composition.raised == (index,)
    assert report.leaks == {Leak.COMPOSITION}
    assert report.states[Leak.LABEL] is State.NO_SUCCESS
    assert not report.samples.proved
    assert "this attack did not succeed" in label_words(report, ())
    assert "which classes are in it" in headline(report)


def test_a_batch_as_large_as_the_head_is_not_attacked_sample_by_sample(trained, draw):
    samples = draw(data.Hard(), 16)
    x, y = torch.stack([s.x for s in samples]), torch.stack([s.y for s in samples])
    report = audit(trained, sl.capture(trained, x.reshape(16, 3, 32, 32), y))
    assert report.several
    assert report.unattacked == frozenset(Leak) - {Leak.COMPOSITION}
    assert headline(report).endswith("Not attacked: label, class, feature and input.")


def test_an_unknown_scale_leaves_the_feature_exact(trained, draw):
    (sample,) = draw(data.Dirichlet(), 1)
    share = sl.capture(trained, sample.x, sample.y).scaled(0.37)
    report = audit(trained, share, options=Options(Knowledge(scale="unknown"), inputs=False))
    assert report.label.proved in ("AMBIGUOUS", "CLASS")
    assert Leak.FEATURE in report.leaks
    assert Leak.LABEL not in report.leaks


def test_a_saturated_softmax_gives_the_class_or_a_set_and_no_more():
    """The paper's failure on AlexNet: a continuum of scalars explains the gradient."""
    torch.manual_seed(0)
    head = nn.Linear(6, 10, bias=False)
    model = nn.Sequential(nn.Flatten(), head)
    with torch.no_grad():
        head.weight.mul_(1e3)
    top = int(head(torch.ones(6)).argmax())
    label = torch.full((10,), 0.02)
    label[top] = 0.82
    share = sl.capture(model, torch.ones(6), label)
    report = audit(model, share, options=Options(inputs=False), input_shape=(6,))
    assert report.label.proved in ("CLASS", "AMBIGUOUS")
    assert Leak.LABEL not in report.leaks


def test_equal_halves_have_a_label_but_no_class(trained, draw):
    (sample,) = draw(data.Hard(), 1)
    label = torch.zeros(10, dtype=torch.double)
    label[[2, 5]] = 0.5
    report = audit(trained, sl.capture(trained, sample.x, label), options=Options(inputs=False))
    assert Leak.LABEL in report.leaks
    assert Leak.CLASS not in report.leaks


def test_declared_noise_is_heeded(trained, draw):
    (sample,) = draw(data.Hard(), 1)
    generator = torch.Generator().manual_seed(0)
    noisy = sl.capture(trained, sample.x, sample.y).map(
        lambda _, g: g + 1e-7 * torch.randn(g.shape, generator=generator)
    )
    report = audit(trained, noisy, options=Options(Knowledge(noise=1e-7), inputs=False))
    assert Leak.CLASS in report.leaks
    assert any("as declared" in line for line in report.assumptions)


def test_undeclared_noise_leaves_a_probable_class_and_a_blurred_input(draw):
    (sample,) = draw(data.Hard(), 1, size=16)
    model = models.lenet(image=16).eval()
    share = GaussianNoise(1e-4, 0)(sl.capture(model, sample.x, sample.y))
    report = audit(
        model, share, options=Options(normalisation=data.CIFAR10_NORM, seconds=2.0),
        truth=Truth(sample.y, sample.x),
    )  # fmt: skip
    assert report.label.proved == "PROBABLE"
    assert report.label.class_index == int(sample.y.argmax())
    assert (Leak.LABEL in report.leaks) == (report.label.recovery.error <= LEAK_LABEL_ERROR)
    assert "with a probability" in label_words(report, ())
    assert report.score.psnr < 60


def test_mistakes_are_named(trained, draw):
    (sample,) = draw(data.Hard(), 1)
    share = sl.capture(trained, sample.x, sample.y)
    with pytest.raises(MissingGradient, match=r"classifier\.weight"):
        audit(trained, share.without("classifier.weight"))
    with pytest.raises(ShareError, match="shape"):
        audit(trained, share.map(lambda _, g: g.flatten()))
    with pytest.raises(DataError, match="entries"):
        audit(trained, share, truth=Truth(torch.ones(3)))
    with pytest.raises(DataError, match="the true class is 11"):
        audit(trained, share, truth=Truth(torch.tensor(11)))
    with pytest.raises(DataError, match="the true input"):
        audit(trained, share, truth=Truth(input=torch.ones(5)))


def test_what_is_no_gradient_is_left_out():
    """Two checkpoints hold running statistics, whose difference would count in the norm."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)).eval()
    share = sl.capture(model, torch.randn(6), 1)
    whole = sl.GradientShare({**share, "1.running_mean": torch.full((8,), 1e10)})
    ready = prepared(Subject.of(model, (6,)), whole, Options())
    assert set(ready) == set(share)
    assert ready.norm() == share.norm()


def test_an_input_of_another_shape_than_the_subjects_is_refused(trained, draw):
    (sample,) = draw(data.Hard(), 1)
    share = sl.capture(trained, sample.x, sample.y)
    subject = Subject.of(trained)
    other = sl.GradientShare(share.gradients, (3, 64, 64))
    with pytest.raises(ShareError, match="give --input-shape 3,64,64"):
        prepared(subject, other, Options())
    assert prepared(subject, sl.GradientShare(share.gradients), Options()).input_shape is None


def test_a_report_writes_its_own_page(tmp_path, trained, draw):
    (sample,) = draw(data.Hard(), 1)
    share = sl.capture(trained, sample.x, sample.y)
    audit(trained, share, options=Options(inputs=False)).to_html(tmp_path / "report.html")
    assert "its exact label" in (tmp_path / "report.html").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
