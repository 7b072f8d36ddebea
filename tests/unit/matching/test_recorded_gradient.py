"""Tangents that pass through recorded operations are those of the function itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jvp

from softleak.core.subject import Subject
from softleak.matching.gauss_newton.products import (
    Linearisation,
    NewtonModel,
    TangentProducts,
    record_operations,
)
from softleak.numerics.operations import KernelShape, kernel_shape


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize(("size", "padding", "dilation"), [
    ((3, 3), (1, 1), (1, 1)), ((2, 3), (0, 2), (1, 1)), ((3, 2), (1, 0), (2, 1)),
    ((1, 1), (0, 0), (1, 1)),
])  # fmt: skip
@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (2, 1), (2, 2)])
def test_gradients_of_kernels_are_those_of_autograd(stride, size, padding, dilation, batch, groups):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    weight = drawn(4, 6 // groups, *size).requires_grad_()
    many = drawn(5, batch, 6, 8, 7)
    outputs = [F.conv2d(x, weight, None, stride, padding, dilation, groups) for x in many]
    deltas = [drawn(*outputs[0].shape) for _ in many]
    kernel = KernelShape(size, stride, padding, dilation, groups)

    def expected(output, delta):
        return torch.autograd.grad(output, weight, delta, retain_graph=True)[0]

    of_delta = torch.stack([expected(outputs[0], delta) for delta in deltas])
    assert torch.allclose(kernel.of_delta(torch.stack(deltas), many[0]), of_delta)
    of_input = torch.stack([expected(output, deltas[0]) for output in outputs])
    assert torch.allclose(kernel.of_input(many, deltas[0]), of_input)


def test_other_convolutions_have_no_plain_kernel():
    weight = torch.zeros(4, 2, 3, 3)
    settings = [[1, 1], [0, 0], [1, 1], False, [0, 0]]
    assert kernel_shape(weight, [*settings, 1]) == KernelShape((3, 3), (1, 1), (0, 0), (1, 1))
    assert kernel_shape(weight, [*settings[:3], True, [0, 0], 1]) is None
    assert kernel_shape(weight[..., 0], [*settings, 1]) is None


class Varied(nn.Module):
    """Every kind of rule at once: kernels, groups, norms, attention, products of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, 2, 1)
        self.norm = nn.BatchNorm2d(4)
        self.own = nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False)
        self.again = nn.Conv2d(4, 4, 3, 1, 1)
        self.along = nn.Conv1d(4, 4, 3, 1, 1, bias=False)
        self.level = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.silu(self.norm(self.first(x)))
        x = x * torch.sigmoid(self.own(x)) + F.gelu(self.again(x))
        tokens = self.level(self.along(x.flatten(2)).transpose(1, 2))
        scores = (self.mix(tokens) @ tokens.transpose(1, 2)).softmax(-1)
        return self.head((scores @ tokens).square().mean(1).add_(1))


def model_of(network, shape):
    torch.manual_seed(0)
    subject = Subject.of(network().eval(), shape[1:])
    return NewtonModel.of(subject, tuple(subject.parameters), shape, 1 << 26)


def test_tangents_through_recorded_operations_are_those_of_jvp():
    function = model_of(Varied, (2, 2, 6, 6)).exact
    generator = torch.Generator().manual_seed(1)
    first, z, *tangents = torch.randn(5, function.unknowns, generator=generator, dtype=torch.double)
    graph = record_operations(function.groups, first)  # what is recorded holds elsewhere as well
    found = Linearisation(graph, z).rows(torch.stack(tangents))
    for row, v in enumerate(tangents):
        for part, expected in zip(found, jvp(function.groups, (z,), (v,))[1], strict=True):
            own = torch.zeros_like(expected) if part is None else part[row]
            assert torch.allclose(own, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


def test_what_cannot_be_recorded_still_has_a_jacobian():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(torch.tanh(x if float(x.sum()) > 0 else -x))

    function = model_of(Branching, (1, 6)).exact
    products = TangentProducts(function, 1 << 20)
    z = torch.rand(function.unknowns, dtype=torch.double)
    weight = torch.rand(sum(function.sizes.values()), dtype=torch.double)
    jacobian = products.jacobian(z, weight, None)
    assert not products.recorded
    v = torch.rand(function.unknowns, dtype=torch.double)
    assert torch.allclose(v @ jacobian, products.along(z, v) * weight)


class Thin(nn.Module):
    """Layers with more channels than places, and a bias whose gradient is always zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, 2, 1)
        self.second = nn.Conv2d(6, 30, 3, 2, 1)
        self.within = nn.Linear(30, 26)
        self.mix = nn.Linear(4, 4)
        self.level = nn.LayerNorm(26)
        self.head = nn.Linear(26, 5)

    def forward(self, x):
        x = F.silu(self.second(F.gelu(self.first(x))))
        tokens = self.within(x.flatten(2).transpose(1, 2))
        # The bias of the mixture is the same for all channels, and the norm takes it away.
        mixed = self.level(self.mix(tokens.transpose(1, 2)).transpose(1, 2))
        return self.head(torch.tanh(mixed).mean(1))


@pytest.mark.parametrize("batch", [1, 2])
def test_fewer_rows_have_the_same_normal_equations(batch):
    function = model_of(Thin, (batch, 2, 8, 8)).exact
    products = TangentProducts(function, 1 << 24)
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(function.unknowns, generator=generator, dtype=torch.double)
    sizes = list(function.sizes.values())
    r = torch.randn(sum(sizes), generator=generator, dtype=torch.double)
    weight = torch.cat([torch.full((size,), 1.0 + k).double() for k, size in enumerate(sizes)])
    whole = products.jacobian(z, weight, None)
    few, left = products.reduced(z, r, weight)
    assert products.recorded
    assert few.shape[1] == len(left) < 0.6 * whole.shape[1]
    assert torch.allclose(few @ few.T, whole @ whole.T)
    assert torch.allclose(few @ left, whole @ r)


def test_a_gradient_used_twice_keeps_all_of_its_rows():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice = nn.Linear(12, 12)
            self.head = nn.Linear(12, 9)

        def forward(self, x):
            return self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))))

    function = model_of(Shared, (1, 12)).exact
    products = TangentProducts(function, 1 << 24)
    z = torch.rand(function.unknowns, dtype=torch.double)
    r, weight = torch.rand(2, sum(function.sizes.values()), dtype=torch.double)
    weight = torch.ones_like(weight)
    whole = products.jacobian(z, weight, None)
    few, left = products.reduced(z, r, weight)
    # The head's gradient has rank one, that of the other layer is a sum of two products.
    assert products.recorded
    assert whole.shape[1] - few.shape[1] == 12 * 9 - (12 + 9 - 1)
    assert torch.allclose(few @ few.T, whole @ whole.T)
    assert torch.allclose(few @ left, whole @ r)
