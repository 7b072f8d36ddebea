from __future__ import annotations

import pytest
import torch

from softleak.core.errors import ModelError
from softleak.paper.models import kaiming_, resnet20, uniform_


def test_every_parameter_is_filled_and_no_buffer() -> None:
    model = uniform_(resnet20(), 0.5, torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        assert parameter.abs().max() <= 0.5
        assert parameter.unique().numel() > 1
    assert torch.equal(model.bn1.running_mean, torch.zeros(16))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert flat.mean().abs() < 0.01
    assert flat.std() == pytest.approx(0.5 / 3**0.5, rel=0.01)


def test_the_generator_decides() -> None:
    one, two, other = (
        uniform_(resnet20(), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one.linear.weight, two.linear.weight)
    assert not torch.equal(one.linear.weight, other.linear.weight)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_bound_must_be_positive(bound: float) -> None:
    with pytest.raises(ModelError, match="bound"):
        uniform_(resnet20(), bound)


def test_kaiming_gives_every_convolution_the_gain_of_a_relu() -> None:
    model = kaiming_(resnet20(), torch.Generator().manual_seed(0))
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 5000:
            fan_out = module.weight.shape[0] * module.weight[0, 0].numel()
            assert float(module.weight.std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
