"""This module finds, by running a model, where the gradient tells every patch of an image.

A vision transformer cuts an image into N patches ``X`` (N, K), projects them by a weight ``W``
(d, K) and adds a learned position ``P`` to each. With ``Δ = ∂L/∂P`` (N, d) the gradient of the
weight is ``∂L/∂W = Δᵀ X``. No names are consulted: a weight and a parameter are a plan if this
equation holds on images that are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.client import capture
from softleak.errors import SoftleakError, in_a_line
from softleak.forward import seeded
from softleak.input_shapes import random_tensor
from softleak.input_spec import Shape
from softleak.inversion.pixel_index import OUTSIDE, pixel_layers
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class PatchProbe:
    """These settings decide whether a parameter is added to the patches.

    Attributes:
        runs: the number of random images the equation is tried on.
        tolerance: what may remain of the weight's gradient, in units of the rounding of a sum.
        seed: the seed of the images.
    """

    runs: int = 2
    tolerance: float = 64.0
    seed: int = 0


PATCH_PROBE = PatchProbe()


@dataclass(frozen=True, eq=False)
class PatchPlan:
    """This says which gradients tell the patches of an image, and where its pixels are.

    Attributes:
        weight: the name of the patch projection's weight.
        positions: the name of the parameter that is added to the projected patches.
        first: the row of ``positions`` that belongs to the first patch; class, distillation and
            register tokens stand before it or behind the last.
        factor: what the positions are multiplied by before they are added.
        pixels: (N, K) the number of the pixel behind each entry of each patch, −1 for padding.
        shape: the shape of the image.
    """

    weight: str
    positions: str
    first: int
    factor: float
    pixels: Tensor
    shape: Shape

    def read(self, gradients: GradientShare) -> tuple[Tensor, Tensor]:
        """Return ``Δ`` (N, d) and ``∂L/∂W`` (d, K) of a share, in float64."""
        G = gradients[self.weight].double().flatten(1)
        rows = _rows(gradients[self.positions].double(), len(G))[0]
        return rows[self.first : self.first + len(self.pixels)] / self.factor, G


@dataclass(frozen=True)
class NoPlan:
    """This says why the embeddings of a model do not tell its input."""

    reason: str


def patch_plan(subject: Subject) -> PatchPlan | NoPlan:
    """Return where a subject's gradients tell the patches of an image, or why nowhere."""
    shape = subject.tensor_shape
    if shape is None:
        return NoPlan("the input is not one tensor of real numbers of a known shape")
    added = _addable(subject.model)
    if not added:
        return NoPlan("the model has no learned position of its own for each patch")
    try:
        found = next(_plans(subject.model, shape, added), None)
    except SoftleakError as error:
        return NoPlan(str(error))
    except Exception as error:  # the model's own code may raise anything
        return NoPlan(f"the model cannot be probed: {in_a_line(error)}")
    return found or NoPlan(
        "no parameter that the model learns is added to projected patches of the image, so the "
        "gradient at each patch is not sent by itself (positions may be fixed, relative or "
        "resized)"
    )


def _addable(model: nn.Module) -> list[str]:
    """Return the parameters that may hold positions: those of no layer, and rows of tables."""
    tables = [name for name, m in model.named_modules() if isinstance(m, nn.Embedding)]
    free = [
        n
        for n, p in model.named_parameters()
        if p.ndim > 1 and _is_free(model, n) and p.requires_grad
    ]
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    return free + [f"{name}.weight" for name in tables if f"{name}.weight" in trained]


def _is_free(model: nn.Module, name: str) -> bool:
    """Return whether a parameter belongs to no layer with a product of its own."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return not isinstance(
        owner, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd | nn.MultiheadAttention
    )


def _plans(model: nn.Module, shape: Shape, added: list[str]) -> Iterator[PatchPlan]:
    """Yield the plans that hold on random images."""
    layers = list(pixel_layers(model, shape))
    if not layers:
        return
    generator = torch.Generator().manual_seed(PATCH_PROBE.seed)
    images = [random_tensor(shape, i, generator) for i in range(PATCH_PROBE.runs)]
    with seeded(PATCH_PROBE.seed, next(model.parameters())):
        shares = [capture(model, x, i % 2) for i, x in enumerate(images)]
    for name, pixels in layers:
        for positions in added:
            plan = _plan(f"{name}.weight", positions, pixels, shape, (images, shares))
            if plan is not None:
                yield plan


def _plan(
    weight: str,
    positions: str,
    pixels: Tensor,
    shape: Shape,
    known: tuple[list[Tensor], list[GradientShare]],
) -> PatchPlan | None:
    """Return the plan of two parameters if its equation holds on every known image."""
    images, shares = known
    if not all(weight in share and positions in share for share in shares):
        return None
    width, count = len(shares[0][weight]), len(pixels)
    rows = next(iter(_rows(shares[0][positions], width)), None)
    if rows is None:
        return None
    for first in range(len(rows) - count + 1):
        plan = PatchPlan(weight, positions, first, 1.0, pixels, shape)
        factors = [_factor(plan, x, share) for x, share in zip(images, shares, strict=True)]
        if all(abs(one / factors[0] - 1) < 1e-3 for one in factors if factors[0]) and all(factors):
            factor = 1.0 if abs(factors[0] - 1) < 1e-4 else 1 / factors[0]
            return PatchPlan(weight, positions, first, factor, pixels, shape)
    return None


def _factor(plan: PatchPlan, x: Tensor, share: GradientShare) -> float:
    """Return c with ``∂L/∂W = c Δᵀ X``; 0 if there is none."""
    delta, G = plan.read(share)
    patches = patches_of(x.to(G), plan.pixels)
    made = delta.T @ patches
    size = float(made.square().sum())
    c = float((made * G).sum()) / size if size else 0.0
    eps = torch.finfo(share[plan.weight].dtype).eps
    sizes = (abs(c) * (delta.abs().T @ patches.abs())).norm()
    return c if (G - c * made).norm() <= PATCH_PROBE.tolerance * eps * sizes else 0.0


def patches_of(x: Tensor, pixels: Tensor) -> Tensor:
    """Return the patches (N, K) of an image; padding is zero."""
    values: Tensor = torch.where(
        pixels == OUTSIDE, 0.0, x.flatten()[pixels.to(x.device).clamp_min(0)]
    )
    return values


def _rows(held: Tensor, width: int) -> list[Tensor]:
    """Return a parameter as rows (T, d) of this width, in the one order its shape allows."""
    if held.shape[-1] == width:
        return [held.reshape(-1, width)]
    if held.ndim > 2 and held.shape[:2] == (1, width):  # a map of positions
        return [held[0].flatten(1).T]
    return []
