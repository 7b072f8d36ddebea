"""What no attack can do against one client: the bound beside the attacker who attains it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.bounds.hidden import weakest_hiding
from softleak.bounds.means import Candidates, flat
from softleak.core.errors import ModelError, OptionError
from softleak.core.loss import BinaryCrossEntropy, CrossEntropy
from softleak.defenses import Clip, GaussianNoise


def network(outputs=4, norm=False):
    torch.manual_seed(3)
    between = [nn.BatchNorm1d(7)] if norm else []
    return nn.Sequential(nn.Linear(6, 7), *between, nn.Tanh(), nn.Linear(7, outputs))


def batch(size, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.arange(size) % 4


def distances(candidates):
    """Distances of what the client really sends, from all numbers of every share."""
    sent = torch.stack([flat(candidates.share(n), {}) for n in range(len(candidates.values))])
    return torch.cdist(sent.double(), sent.double())


CLIENTS = {
    "gradient": sl.Client(),
    "weighted": sl.Client(loss=CrossEntropy(weight=(1.0, 2.0, 0.5, 3.0))),
    "steps": sl.Client(lr=0.1, steps=5, momentum=0.9),
    "adam": sl.Client(lr=0.01, steps=3, optimiser="adam"),
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_means_are_those_of_what_the_client_sends(client, size, norm):
    model = network(norm=norm).double().train(size > 1)
    found = Candidates.of(model, *batch(size), client, sample=size // 2)
    torch.testing.assert_close(found.means().mixture().distances, distances(found))


def test_many_labels_cost_no_more_passes_than_there_are_logits():
    labels = torch.distributions.Dirichlet(torch.ones(4)).sample((30,))
    found = Candidates.of(network(), *batch(1), sl.Client(), labels)
    assert found.means().combinations.shape == (30, 4)
    expected = distances(found).float()
    torch.testing.assert_close(
        found.means().mixture().distances.float(), expected, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("held", [1, 2, 10])
def test_inner_products_do_not_depend_on_what_is_held(held, monkeypatch):
    model = network()
    whole = Candidates.of(model, *batch(1), sl.Client()).means().gram()
    monkeypatch.setattr("softleak.bounds.means.MOST_HELD", held * 81)
    blocks = Candidates.of(model, *batch(1), sl.Client()).means().gram()
    torch.testing.assert_close(blocks, whole)


def attacked(found, noise, trials=300):
    """How often the maximum-likelihood attacker is right on real shares with real noise."""
    generator = torch.Generator().manual_seed(11)
    sent = torch.stack([flat(found.share(n), {}) for n in range(len(found.values))]).double()
    truth = torch.randint(len(sent), (trials,), generator=generator)
    drawn = torch.randn(trials, sent.shape[1], generator=generator, dtype=torch.double)
    named = torch.cdist(sent[truth] + noise * drawn, sent).argmin(1)
    return float((named == truth).double().mean())


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("size", [1, 5])
def test_the_bound_is_attained(client, size):
    model, (x, y) = network(), batch(size)
    found = Candidates.of(model, x, y, client)
    noise = float(distances(found).max()) / 3
    proof = sl.prove_hidden(model, x, y, client=client, noise=noise)
    assert proof.chance == 0.25
    assert 0.3 < proof.success < 0.99
    assert attacked(found, noise) == pytest.approx(proof.success, abs=0.09)


def test_limits_and_the_verdict():
    model, (x, y) = network(), batch(1)
    assert sl.prove_hidden(model, x, y, noise=0.0).success == 1
    endless = sl.prove_hidden(model, x, y, noise=math.inf, target=0.27)
    assert endless.interval[0] < 0.25 < endless.interval[1]
    assert endless.hidden
    assert not sl.prove_hidden(model, x, y, noise=0.0).hidden
    assert "proved hidden" in endless.message
    assert len(endless.assumptions) == 5


def test_an_input_without_a_gradient_hides_its_label():
    class Constant(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0

    found = sl.prove_hidden(Constant(6, 4), batch(1)[0], 0, noise=0.0)
    assert found.interval[0] < 0.25 < found.interval[1]


def test_images_and_words_as_candidates():
    model, (x, y) = network(), batch(3)
    images = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    proof = sl.prove_hidden(model, x, y, noise=0.02, what="input", candidates=images, sample=1)
    found = Candidates.of(model, x, y, sl.Client(), images, what="input", sample=1)
    assert proof.chance == 1 / 8
    assert attacked(found, 0.02) == pytest.approx(proof.success, abs=0.09)

    torch.manual_seed(0)
    reader = nn.Sequential(nn.Embedding(20, 5), nn.Flatten(), nn.Linear(15, 2))
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    words = Candidates.of(
        reader, ids, [0, 1], sl.Client(), [1, 4, 9, 17], what="word", sample=1, place=2
    )
    assert (
        sl.prove_hidden(
            reader, ids, [0, 1], noise=0.0, what="word", candidates=[1, 4, 9, 17], sample=1, place=2
        ).success
        == 1
    )
    torch.testing.assert_close(words.means().mixture().distances, distances(words))


def test_several_labels_of_a_binary_cross_entropy():
    client = sl.Client(loss=BinaryCrossEntropy())
    found = Candidates.of(network(3), batch(1)[0], torch.tensor([1.0, 0.0, 1.0]), client)
    assert found.values.shape == (8, 3)
    torch.testing.assert_close(found.means().mixture().distances.float(), distances(found).float())


def test_a_defence_before_the_noise_changes_the_means():
    model, (x, y) = network(), batch(1)
    found = Candidates.of(model, x, y, sl.Client(), defense=Clip(0.1))
    torch.testing.assert_close(found.means().mixture().distances, distances(found))
    open_, clipped = (
        sl.prove_hidden(model, x, y, noise=0.1, **more) for more in ({}, {"defense": Clip(0.1)})
    )
    assert clipped.success < open_.success


def test_what_draws_has_no_bound():
    model, (x, y) = network(), batch(1)
    with pytest.raises(OptionError, match="should draw nothing"):
        sl.prove_hidden(model, x, y, noise=1.0, defense=GaussianNoise(0.1, 0))
    dropping = nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.5), nn.Linear(7, 4))
    with pytest.raises(ModelError, match="put it in eval mode"):
        sl.prove_hidden(dropping.train(), x, y, noise=1.0)


LOSSES = {
    "focal": lambda z, t: -((1 - z.softmax(1)) ** 2 * t * z.log_softmax(1)).sum(1).mean(),
    "smoothing": lambda z, t: nn.functional.cross_entropy(z, t, label_smoothing=0.2),
    "hinge": lambda z, t: nn.functional.multi_margin_loss(z, t.argmax(1)),
    "squares": lambda z, t: nn.functional.mse_loss(z.softmax(1), t),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("steps", [None, 5])
def test_losses_of_ones_own(loss, steps):
    model, (x, y) = network().double(), batch(3)
    client = sl.Client(loss=loss) if steps is None else sl.Client(lr=0.1, steps=steps, loss=loss)
    found = Candidates.of(model, x, y, client, sample=1)
    torch.testing.assert_close(found.means().mixture().distances, distances(found))


@pytest.mark.parametrize("steps", [None, 5])
def test_targets_of_squares_as_a_finite_set(steps):
    model, targets = network(1).double(), torch.tensor([0.0, 0.5, 2.0])
    client = sl.Client(loss="mse") if steps is None else sl.Client(lr=0.1, steps=5, loss="mse")
    found = Candidates.of(model, batch(2)[0], [0.3, 0.7], client, targets, sample=1)
    torch.testing.assert_close(found.means().mixture().distances, distances(found))


def test_noise_by_parameter():
    model, (x, y) = network(), batch(1)
    names = [name for name, _ in model.named_parameters()]
    alike = sl.prove_hidden(model, x, y, noise=dict.fromkeys(names, 0.3))
    one = sl.prove_hidden(model, x, y, noise=0.3)
    assert alike.success == pytest.approx(one.success, abs=0.02)
    more = sl.prove_hidden(model, x, y, noise=dict.fromkeys(names, 0.3) | {"2.weight": 3.0})
    assert more.success < one.success
    assert sl.prove_hidden(model, x, y, noise=dict.fromkeys(names[1:], 0.3)).success == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"noise": -1.0}, "standard deviation"),
        ({"noise": 1.0, "what": "colour"}, "what should be"),
        ({"noise": 1.0, "sample": 1}, "sample should be"),
        ({"noise": 1.0, "prior": [0.5, 0.5]}, "positive prior for each of 4"),
        ({"noise": 1.0, "candidates": [2]}, "at least two candidates"),
        ({"noise": 1.0, "client": sl.Client(loss="mse")}, "have to be given"),
        ({"noise": 1.0, "what": "word", "candidates": [1, 2]}, "token ids"),
    ],
)  # fmt: skip
def test_mistakes_say_what_was_expected(given, match):
    y = torch.zeros(4) if "client" in given else 0
    with pytest.raises(OptionError, match=match):
        sl.prove_hidden(network(), batch(1)[0], y, **given)


@pytest.mark.parametrize("size", [1, 4])
def test_the_weakest_noise_hides_and_less_does_not(size):
    model, (x, y) = network(), batch(size)
    found = weakest_hiding(model, x, y, target=0.4, trials=5_000)
    assert found.proof.hidden
    assert found.proof.candidates == 4
    weaker = sl.prove_hidden(model, x, y, noise=0.97 * found.proof.noise, target=0.4, trials=5_000)
    assert not weaker.hidden
    assert found.declared is None


def test_the_mean_of_so_many_clients_keeps_the_cosine_that_is_asked_for():
    model, (x, y) = network(), batch(1)
    found = weakest_hiding(model, x, y, target=0.3, cosine=0.8, noise=1e-3)
    assert found.declared.success == 1
    assert not found.affordable
    own = flat(sl.capture(model, x, y), {}).double()
    generator = torch.Generator().manual_seed(1)

    def cosine(clients):
        drawn = torch.randn(200, len(own), generator=generator, dtype=torch.double)
        means = own + found.proof.noise / math.sqrt(clients) * drawn
        return float(torch.cosine_similarity(means, own[None]).mean())

    assert cosine(1) == pytest.approx(found.cosine, abs=0.05)
    assert cosine(found.clients) == pytest.approx(0.8, abs=0.03)


def test_what_a_guess_already_tells_no_noise_hides():
    model, (x, y) = network(), batch(1)
    found = weakest_hiding(model, x, y, target=0.2)  # of four classes
    assert found.proof is None
    assert not found.affordable
    with pytest.raises(OptionError, match="a success and a cosine"):
        weakest_hiding(model, x, y, target=1.0)
