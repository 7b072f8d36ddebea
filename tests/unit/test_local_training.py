"""A client that trains does what torch.optim does, and its share remembers it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import grad, jvp

import softleak as sl
from softleak.core.client import LocalProgram
from softleak.core.errors import OptionError, ShareError
from softleak.core.share import UNKNOWN, LocalTraining
from softleak.paper import models

NETWORKS = {
    "lenet": lambda: models.lenet(),
    "mlp": lambda: models.mlp(3 * 32 * 32, (16, 12)),
    "resnet": lambda: models.resnet20().eval(),
}
OPTIMISERS = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9, "dampening": 0.1},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    "adam": {"optimiser": "adam", "lr": 1e-3, "weight_decay": 0.01},
    "adamw": {"optimiser": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}


def by_torch(model, client, x, y):
    """What torch.optim makes of the weights, batch by batch."""
    model = copy.deepcopy(model)
    weights = [p for p in model.parameters() if p.requires_grad]
    rules = {"lr": client.lr, "weight_decay": client.weight_decay}
    if client.optimiser == "sgd":
        rules |= {"momentum": client.momentum, "dampening": client.dampening}
        optimiser = torch.optim.SGD(weights, nesterov=client.nesterov, **rules)
    else:
        kind = torch.optim.Adam if client.optimiser == "adam" else torch.optim.AdamW
        optimiser = kind(weights, betas=client.betas, eps=client.eps, **rules)
    for batch in client.batches(len(x), x.device):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    return model


@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("settings", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_is_what_torch_optim_does(network, settings, steps):
    torch.manual_seed(1)
    model = NETWORKS[network]().double()
    client = sl.Client(steps=steps, batch_size=2, **settings)
    x, y = torch.randn(3, 3, 32, 32).double(), torch.rand(3, 10).double().softmax(1)
    share, after = client.share(model, x, y), by_torch(model, client, x, y)
    largest = max(float(u.abs().max()) for u in share.values())
    for (name, old), new in zip(model.named_parameters(), after.parameters(), strict=True):
        off = float((share[name] - (old - new).detach()).abs().max())
        # Adam turns the rounding of a gradient near zero into a step of its full size: 1e-6 of it.
        assert off <= (1e-11 if settings.get("optimiser") is None else 1e-6) * largest
    assert share.made_by == client.training
    assert share.input_shape == (3, 32, 32)


def test_one_sample_and_epochs():
    model, x = models.mlp(12, (8,)), torch.randn(12)
    once = sl.Client(lr=0.1, epochs=3).share(model, x, 4)
    same = sl.Client(lr=0.1, steps=3).share(model, x[None], torch.tensor([4]))
    for name in once:
        torch.testing.assert_close(once[name], same[name])


def test_unused_and_frozen_parameters_stay():
    model = nn.Module()
    model.body, model.idle, model.head = nn.Linear(6, 5), nn.Linear(2, 2), nn.Linear(5, 3)
    model.forward = lambda x: model.head(model.body(x).tanh())
    model.body.requires_grad_(False)
    share = sl.Client(lr=0.1, steps=2, weight_decay=0.1).share(model, torch.randn(6), 1)
    assert "body.weight" not in share
    assert not share["idle.weight"].any()
    assert share["head.weight"].any()


def test_batch_norm_keeps_its_statistics():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).train()
    before = {n: b.clone() for n, b in model.named_buffers()}
    sl.Client(lr=0.1, epochs=2, batch_size=4).share(model, torch.randn(8, 4), torch.arange(8) % 3)
    assert all(torch.equal(before[n], b) for n, b in model.named_buffers())


@pytest.mark.parametrize("settings", OPTIMISERS.values(), ids=OPTIMISERS)
def test_can_be_differentiated_by_the_data(settings):
    model = models.mlp(5, (4,), 3, nn.Tanh).double()
    program = LocalProgram.of(
        model, nn.functional.cross_entropy, sl.Client(steps=3, **settings).training
    )
    start = {n: p.detach() for n, p in model.named_parameters()}
    x, y = torch.randn(1, 5).double(), torch.rand(1, 3).double().softmax(1)

    def length(x):
        return sum(w.square().sum() for w in program.run(start, x, y).values())

    direction = torch.randn_like(x)
    slope = jvp(length, (x,), (direction,))[1]
    torch.testing.assert_close(slope, (grad(length)(x) * direction).sum())
    step = 1e-5 * direction
    torch.testing.assert_close(
        slope, (length(x + step) - length(x - step)) / 2e-5, rtol=1e-4, atol=1e-7
    )


def test_settings_are_read_and_written():
    client = sl.Client.parse("lr=0.01,steps=5\nmomentum=? # nobody said\nbetas=0.8/0.99")
    assert client.lr == 0.01
    assert client.steps == 5
    assert client.momentum is UNKNOWN
    assert client.unknowns == ("momentum",)
    assert client.betas == (0.8, 0.99)
    assert sl.Client.parse(str(client)) == client
    for wrong in ("rate=1", "lr=fast", "steps", "lr=-1", "nesterov=true,lr=0.1"):
        with pytest.raises(OptionError):
            sl.Client.parse(wrong)
    with pytest.raises(OptionError):
        client.share(models.mlp(4), torch.randn(4), 0)


def test_a_share_remembers_its_client(tmp_path):
    model = models.mlp(6, (5,))
    share = sl.Client(lr=0.1, steps=2, momentum=0.5).share(model, torch.randn(6), 1)
    share.save(tmp_path / "share.safetensors")
    assert sl.GradientShare.load(tmp_path / "share.safetensors").made_by == share.made_by
    state = model.state_dict()
    with pytest.raises(ShareError):
        sl.GradientShare.from_update(state, state, client=sl.Client())
    with pytest.raises(ShareError):
        sl.GradientShare.from_update(state, state, lr=0.1, client=LocalTraining(lr=0.1))


class WithLogits(nn.Module):
    """A model that answers as those of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x):
        return {"logits": self.net(x)}


def test_a_model_whose_output_holds_logits_is_trained_like_the_plain_one():
    torch.manual_seed(0)
    model, x, y = WithLogits(), torch.randn(3, 6), torch.tensor([0, 2, 3])
    client = sl.Client(lr=0.1, steps=3, momentum=0.9)
    wrapped, plain = client.share(model, x, y), client.share(model.net, x, y)
    assert {f"net.{name}" for name in plain} == set(wrapped)
    for name in plain:
        assert torch.allclose(plain[name], wrapped[f"net.{name}"])
