"""Images of vision transformers in closed form: right to rounding, and honest where rows lack."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.errors import ModelError
from softleak.inversion.patches import PatchPlan, patch_plan, pixel_layers
from softleak.inversion.results import NoWay
from softleak.paper import models


class Patches(nn.Module):
    """A transformer of patches that are cut by hand, with registers behind them."""

    def __init__(self, width: int = 48, *, learned: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.project = nn.Linear(12, width)
        positions = 0.5 * torch.randn(18, width)
        self.places = nn.Parameter(positions) if learned else None
        self.register_buffer("fixed", positions)
        self.extra, self.scale = nn.Parameter(torch.randn(1, 2, width)), scale
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        cut = x.reshape(len(x), 3, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(len(x), 16, 12)
        tokens = torch.cat([self.project(cut), self.extra.expand(len(x), -1, -1)], 1)
        tokens = tokens + self.scale * (self.fixed if self.places is None else self.places)
        logits: Tensor = self.head(torch.tanh(self.layer(tokens).mean(1)))
        return logits


def psnr(found: Tensor, true: Tensor) -> float:
    return -10 * math.log10(float((found - true.double()).square().mean()))


def image(seed: int, shape: tuple[int, ...] = (3, 8, 8)) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def cut() -> Patches:
    torch.manual_seed(0)
    return Patches(scale=3.0).eval()


@pytest.mark.parametrize("seed", range(4))
def test_the_image_is_computed_and_its_error_predicted(cut: Patches, seed: int) -> None:
    x, y = image(seed), torch.tensor([0.1, 0.2, 0.3, 0.4])
    share = sl.capture(cut, x, y)
    found = sl.invert(cut, share, sl.recover_label(cut, share))
    assert found.determined
    assert psnr(found.input, x) > 70  # 79 to 91 measured
    off = (found.input - x.double()).square().mean().sqrt()
    assert 1 / 3 < float(found.error.square().mean().sqrt() / off) < 3


def test_neither_a_label_nor_the_scale_is_needed(cut: Patches) -> None:
    x = image(7)
    share = sl.capture(cut, x, 2)
    exact = sl.invert(cut, share)
    clipped = sl.invert(cut, share.scaled(1e-4))
    assert psnr(exact.input, x) > 70
    assert psnr(clipped.input, x) > 70


def test_the_plan_names_the_parameters_and_the_first_patch(cut: Patches) -> None:
    plan = patch_plan(sl.Subject.of(cut, (3, 8, 8)))
    assert isinstance(plan, PatchPlan)
    assert (plan.weight, plan.positions, plan.first) == ("project.weight", "places", 0)
    assert plan.factor == pytest.approx(1 / 3, rel=1e-4) or plan.factor == pytest.approx(
        3, rel=1e-4
    )


def test_the_project_s_own_transformer_has_a_class_token_first() -> None:
    torch.manual_seed(0)
    model = models.vit(classes=5, image=16, width=48, depth=2).eval()
    plan = patch_plan(sl.Subject.of(model, (3, 16, 16)))
    assert isinstance(plan, PatchPlan)
    assert plan.first == 1
    x = image(1, (3, 16, 16))
    found = sl.invert(model, sl.capture(model, x, 3))
    assert found.determined
    assert psnr(found.input, x) > 70


def test_more_patches_than_equations_are_called_open() -> None:
    torch.manual_seed(0)
    model = Patches(width=12).eval()
    found = sl.invert(model, sl.capture(model, image(2), 1))
    assert not found.determined
    assert "16 patches and only 12 equations" in found.message
    assert float(found.error.min()) > 0.01


def test_what_a_narrow_model_leaves_open_is_in_no_gradient() -> None:
    """More patches than equations, and a projection that hides a part of each patch."""
    torch.manual_seed(0)
    model = Patches(width=8).eval().double()
    x = image(2).double()
    plan = patch_plan(sl.Subject.of(model, (3, 8, 8)))
    assert isinstance(plan, PatchPlan)
    share = sl.capture(model, x, 1)
    delta = plan.read(share)[0]
    unseen = torch.linalg.svd(delta.T).Vh[-1]  # patches that no equation tells apart
    hidden = torch.linalg.svd(model.project.weight.detach()).Vh[-1]  # what no token shows
    other = x.flatten().clone()
    other[plan.pixels.flatten()] += torch.outer(unseen, hidden).flatten()
    same = sl.capture(model, other.reshape(3, 8, 8), 1)
    assert float((other - x.flatten()).norm()) == pytest.approx(1)
    off = max(float((same[n] - share[n]).abs().max() / share[n].abs().max()) for n in share)
    assert off < 1e-10


@pytest.mark.parametrize("seed", range(3))
def test_patches_that_nearly_agree_are_drawn_together(seed: int) -> None:
    torch.manual_seed(seed)
    model = Patches(width=48).eval()
    with torch.no_grad():
        assert model.places is not None
        model.places.zero_()  # so that equal patches have equal gradients
    plan = patch_plan(sl.Subject.of(model, (3, 8, 8)))
    assert isinstance(plan, PatchPlan)
    generator = torch.Generator().manual_seed(seed)
    spread = 10.0 ** -torch.tensor([*(0.1 * k for k in range(11)), 5, 5.2, 5.4, 5.6, 5.8])
    patches = 0.5 + 0.2 * spread[:, None] * torch.randn(16, 12, generator=generator)
    x = torch.empty(192)
    x[plan.pixels.flatten()] = patches.flatten()
    x = x.reshape(3, 8, 8)
    found = sl.invert(model, sl.capture(model, x, 1))
    off = (found.input - x.double()).square().mean().sqrt()
    assert psnr(found.input, x) > 80  # 102 to 118 measured; 22 to 26 by the equations alone
    assert float(found.error.square().mean().sqrt() / off) > 1 / 3


def test_an_8_bit_image_is_recovered_to_the_last_bit_of_its_pixels(cut: Patches) -> None:
    x = ((255 * image(6)).round() / 255 - 0.47) / 0.24  # as a client normalises it
    found = sl.invert(cut, sl.capture(cut, x, 2))
    assert found.determined
    assert "8-bit" in found.message
    assert psnr(found.input, x) > 140  # 146 measured; 137 by the equations alone
    off = (found.input - x.double()).square().mean().sqrt()
    assert 1 / 3 < float(found.error.square().mean().sqrt() / off) < 3


def test_an_image_of_no_levels_is_given_none(cut: Patches) -> None:
    x, other = ((255 * image(seed)).round() / 255 for seed in (6, 8))
    for made in (0.7 * x + 0.3 * other, torch.where(torch.arange(8) == 5, x + 0.002, x)):
        assert "8-bit" not in sl.invert(cut, sl.capture(cut, made, 2)).message


def test_fixed_positions_are_a_clear_statement() -> None:
    torch.manual_seed(0)
    model = Patches(learned=False).eval()
    share = sl.capture(model, image(3), 1)
    plan = patch_plan(sl.Subject.of(model, (3, 8, 8)))
    assert isinstance(plan, NoWay)
    assert "positions may be fixed" in plan.reason
    with pytest.raises(ModelError):
        sl.invert(model, share, sl.recover_label(model, share))


def test_noise_is_predicted_and_ends_certainty(cut: Patches) -> None:
    x = image(4)
    share = sl.capture(cut, x, 1)
    generator = torch.Generator().manual_seed(0)
    size = 0.3 * float(share["places"].square().mean().sqrt())
    noisy = share.map(lambda _, g: g + size * torch.randn(g.shape, generator=generator))
    found = sl.invert(cut, noisy.expecting(size))
    assert not found.determined
    off = (found.input - x.double()).square().mean().sqrt()
    assert float(found.error.square().mean().sqrt()) > float(off) / 3


def test_a_chain_is_still_walked_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Sigmoid(), nn.Linear(16, 4)).eval()
    x = image(5, (3, 2, 2))
    share = sl.capture(model, x, 1)
    found = sl.invert(model, share, sl.recover_label(model, share))
    assert psnr(found.input, x) > 40
    with pytest.raises(ModelError, match="recover_label"):
        sl.invert(model, share)


def test_patches_are_found_however_they_are_cut() -> None:
    torch.manual_seed(0)
    by_hand = dict(pixel_layers(Patches().eval(), (3, 8, 8)))["project"]
    conv = nn.Sequential(nn.Conv2d(3, 5, 2, 2), nn.Flatten(), nn.Linear(80, 3))
    by_conv = dict(pixel_layers(conv, (3, 8, 8)))["0"]
    assert torch.equal(by_hand, by_conv)
