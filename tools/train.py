"""Train a small CIFAR-10 network and write its weights, with the recipe, as safetensors.

Example:
    python tools/train.py lenet --train train.npz --test test.npz --out lenet.safetensors \
        --epochs 60 --lr 0.004 --smoothing 0.1
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from softleak.data import CIFAR10_NORM, ImageSet, Split, load
from softleak.models import MODELS

_PAD = 4


@dataclass(frozen=True)
class Recipe:
    """Everything the result depends on besides the data."""

    model: str
    epochs: int
    lr: float
    weight_decay: float
    batch: int
    smoothing: float
    mixup: float
    gain: float
    bfloat16: bool
    seed: int


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
    x: Tensor, y: Tensor, recipe: Recipe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of augmented inputs (N, C, H, W) and soft labels (N, classes)."""
    order = torch.randperm(len(x), generator=generator)
    for rows in torch.split(order, recipe.batch):
        images, labels = crop_and_flip(x[rows], generator), y[rows]
        if recipe.mixup > 0:
            weight = recipe.mixup * torch.rand(len(rows), 1, generator=generator)
            other = torch.randperm(len(rows), generator=generator)
            images = torch.lerp(images, images[other], weight[:, :, None, None])
            labels = torch.lerp(labels, labels[other], weight)
        yield images, labels


def tensors(images: ImageSet, smoothing: float) -> tuple[Tensor, Tensor]:
    """Normalised inputs (N, C, H, W) and smoothed labels (N, classes)."""
    x = CIFAR10_NORM.apply(images.images.permute(0, 3, 1, 2).float() / 255)
    hard = functional.one_hot(images.labels, images.classes).float()
    return x, (1 - smoothing) * hard + smoothing / images.classes


def accuracy(model: nn.Module, images: ImageSet) -> float:
    """The share of images whose class has the largest logit."""
    model.eval()
    x, _ = tensors(images, 0.0)
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in torch.split(x, 250)])
    return (guesses == images.labels).double().mean().item()


def train(recipe: Recipe, images: ImageSet, test: ImageSet) -> nn.Module:
    """Train with AdamW and a one-cycle schedule; progress goes to the screen."""
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    model = MODELS[recipe.model](classes=images.classes)
    if recipe.gain > 0:
        initialise(model, recipe.gain)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = tensors(images, recipe.smoothing)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.lr, epochs=recipe.epochs, steps_per_epoch=-(-len(x) // recipe.batch)
    )
    for epoch in range(recipe.epochs):
        start, total = time.perf_counter(), 0.0
        model.train()
        for inputs, targets in batches(x, y, recipe, generator):
            optimiser.zero_grad()
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=recipe.bfloat16):
                logits = model(inputs.contiguous(memory_format=torch.channels_last))
            loss = functional.cross_entropy(logits.float(), targets)
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
            total += loss.item() * len(inputs)
        seconds = time.perf_counter() - start
        line = f"epoch {epoch + 1}/{recipe.epochs}  loss {total / len(x):.4f}  {seconds:.1f} s"
        last = epoch + 1 == recipe.epochs
        print(f"{line}  test {accuracy(model, test):.4f}" if last or epoch % 5 == 4 else line)
    return model.eval()


def save(model: nn.Module, recipe: Recipe, measured: float, path: Path) -> None:
    """Write weights and buffers with the recipe and the test accuracy in the metadata."""
    notes = {key: str(value) for key, value in asdict(recipe).items()}
    notes |= {"data": "CIFAR-10", "normalisation": str(CIFAR10_NORM), "optimiser": "AdamW"}
    notes |= {"schedule": "one cycle", "test_accuracy": f"{measured:.4f}"}
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path, metadata=notes)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", choices=["lenet", "resnet18", "resnet18_cifar"])
    parser.add_argument("--train", type=Path, required=True, help="training data, any known form")
    parser.add_argument("--test", type=Path, required=True, help="test data, any known form")
    parser.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--smoothing", type=float, default=0.0, help="epsilon of the labels")
    parser.add_argument("--mixup", type=float, default=0.0, help="largest weight of the partner")
    parser.add_argument("--gain", type=float, default=0.0, help="Xavier gain; 0: PyTorch's start")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def main() -> None:
    """Train, measure, save."""
    given = arguments()
    torch.set_num_threads(given.threads)
    recipe = Recipe(**{field.name: getattr(given, field.name) for field in fields(Recipe)})
    test = load(given.test, Split.TEST)
    model = train(recipe, load(given.train, Split.TRAIN), test)
    measured = accuracy(model, test)
    save(model, recipe, measured, given.out)
    print(f"test accuracy {measured:.4f}, written to {given.out}")


if __name__ == "__main__":
    main()
