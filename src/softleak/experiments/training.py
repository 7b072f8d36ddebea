"""Training of the small networks that the tables need, and their checkpoints with the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from softleak.atomic import replacing
from softleak.data import CIFAR10_NORM, ImageSet
from softleak.models import MODELS

_PAD = 4
_PART = 250  # images classified at once


@dataclass(frozen=True)
class Recipe:
    """Everything the result depends on besides the data."""

    model: str
    epochs: int = 10
    lr: float = 2e-3  # the highest
    weight_decay: float = 0.0
    batch: int = 128
    smoothing: float = 0.0  # ε of the labels
    mixup: float = 0.0  # the largest weight of the partner
    gain: float = 0.0  # of Xavier; 0 leaves PyTorch's start
    size: int = 32  # pixels a side
    seed: int = 0


@dataclass(frozen=True)
class Epoch:
    """How far training has come."""

    number: int
    of: int
    loss: float


def initialise(model: nn.Module, gain: float) -> None:
    """Xavier with this gain: stacked sigmoids hardly train from PyTorch's own, smaller start."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_normal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image (N, C, H, W) by up to 4 pixels and mirror every other one."""
    padded = functional.pad(x, (_PAD,) * 4, mode="reflect")
    height, width = x.shape[2:]
    shifts = torch.randint(2 * _PAD + 1, (len(x), 2), generator=generator).tolist()
    crops = [
        image[:, i : i + height, j : j + width]
        for image, (i, j) in zip(padded, shifts, strict=True)
    ]
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    out = torch.stack(crops)
    return torch.where(mirrored[:, None, None, None], out.flip(3), out)


def batches(
    images: ImageSet, recipe: Recipe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of augmented inputs (N, C, H, W) and soft labels (N, classes)."""
    order = torch.randperm(len(images), generator=generator)
    for rows in torch.split(order, recipe.batch):
        x, labels = tensors(images, rows, recipe.smoothing)
        x = crop_and_flip(x, generator)
        if recipe.mixup > 0:
            weight = recipe.mixup * torch.rand(len(rows), 1, generator=generator)
            other = torch.randperm(len(rows), generator=generator)
            x = torch.lerp(x, x[other], weight[:, :, None, None])
            labels = torch.lerp(labels, labels[other], weight)
        yield x, labels


def tensors(images: ImageSet, rows: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Normalised inputs (N, C, H, W) and smoothed labels (N, classes)."""
    x = CIFAR10_NORM.apply(images.images[rows].permute(0, 3, 1, 2).float() / 255)
    hard = functional.one_hot(images.labels[rows], images.classes).float()
    return x, (1 - smoothing) * hard + smoothing / images.classes


def accuracy(model: nn.Module, images: ImageSet) -> float:
    """The share of images whose class has the largest logit."""
    model.eval()
    with torch.no_grad():
        guesses = [
            model(tensors(images, rows, 0.0)[0]).argmax(1)
            for rows in torch.split(torch.arange(len(images)), _PART)
        ]
    return (torch.cat(guesses) == images.labels).double().mean().item()


def train(recipe: Recipe, images: ImageSet, tell: Callable[[Epoch], None]) -> nn.Module:
    """Train with AdamW and a one-cycle schedule; images have the recipe's size."""
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(recipe.seed)
        model = MODELS[recipe.model](classes=images.classes)
        if recipe.gain > 0:
            initialise(model, recipe.gain)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.AdamW(model.parameters(), weight_decay=recipe.weight_decay)
        steps = -(-len(images) // recipe.batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, recipe.lr, epochs=recipe.epochs, steps_per_epoch=steps
        )
        for number in range(1, recipe.epochs + 1):
            total = 0.0
            model.train()
            for inputs, targets in batches(images, recipe, generator):
                total += len(inputs) * _step(model, optimiser, inputs, targets)
                schedule.step()
            tell(Epoch(number, recipe.epochs, total / len(images)))
    return model.eval()


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step; the loss before it."""
    optimiser.zero_grad()
    logits = model(x.contiguous(memory_format=torch.channels_last))
    loss = functional.cross_entropy(logits, y)
    torch.autograd.backward(loss)
    optimiser.step()
    return loss.item()


def save(model: nn.Module, recipe: Recipe, path: Path, **notes: str) -> None:
    """Write weights and buffers, with the recipe and notes beside them in the file's metadata."""
    written = {key: str(value) for key, value in asdict(recipe).items()} | notes
    written |= {"normalisation": str(CIFAR10_NORM), "optimiser": "AdamW", "schedule": "one cycle"}
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata=written)
