"""How the trained networks of Tables 2 to 4 are trained, by the name of their checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from softleak.core.input_spec import CIFAR10_NORM
from softleak.io.atomic import replacing
from softleak.paper.data import ImageSet
from softleak.paper.models import MODELS

LARGEST_SHIFT = 4  # the number of pixels by which training images are shifted at most
IMAGES_PER_PASS = 250  # the number of images that are classified at once


@dataclass(frozen=True)
class Recipe:
    """Everything that a trained network depends on, besides its data."""

    model: str  # the name of the architecture in ``softleak.models.MODELS``
    epochs: int = 10  # the number of passes over the data
    lr: float = 2e-3  # the highest learning rate of the one-cycle schedule
    weight_decay: float = 0.0  # the weight decay of AdamW
    batch: int = 128  # the number of images per step
    smoothing: float = 0.0  # the ε of smoothed labels
    mixup: float = 0.0  # the largest weight of the second image in a mix; 0 mixes nothing
    gain: float = 0.0  # the gain of Xavier initialisation; 0 leaves PyTorch's initial weights
    size: int = 32  # the height and width of an image in pixels
    seed: int = 0  # the seed of initial weights, order and augmentation


def initialise(model: nn.Module, gain: float) -> None:
    """Replace the weights by Xavier's, from which stacked sigmoids train, and biases by zero."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_normal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images (N, C, H, W), each shifted by up to 4 pixels and mirrored or not."""
    padded = functional.pad(x, (LARGEST_SHIFT,) * 4, mode="reflect")
    height, width = x.shape[2:]
    shifts = torch.randint(2 * LARGEST_SHIFT + 1, (len(x), 2), generator=generator).tolist()
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
    """Yield one epoch of augmented inputs (N, C, H, W) and soft labels (N, classes)."""
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
    """Return normalised inputs (N, C, H, W) and labels (N, classes) smoothed by ε."""
    x = CIFAR10_NORM.apply(images.images[rows].permute(0, 3, 1, 2).float() / 255)
    hard = functional.one_hot(images.labels[rows], images.classes).float()
    return x, (1 - smoothing) * hard + smoothing / images.classes


def accuracy(model: nn.Module, images: ImageSet) -> float:
    """Return the fraction of images whose class has the largest logit, in eval mode."""
    model.eval()
    with torch.no_grad():
        guesses = [
            model(tensors(images, rows, 0.0)[0]).argmax(1)
            for rows in torch.split(torch.arange(len(images)), IMAGES_PER_PASS)
        ]
    return (torch.cat(guesses) == images.labels).double().mean().item()


def train(recipe: Recipe, images: ImageSet, tell: Callable[[int, float], None]) -> nn.Module:
    """Train a network with AdamW and a one-cycle schedule; tell number and mean loss of epochs."""
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
            tell(number, total / len(images))
    return model.eval()


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Take one step, and return the loss before it."""
    optimiser.zero_grad()
    logits = model(x.contiguous(memory_format=torch.channels_last))
    loss = functional.cross_entropy(logits, y)
    torch.autograd.backward(loss)
    optimiser.step()
    return loss.item()


def save(model: nn.Module, recipe: Recipe, path: Path, **notes: str) -> None:
    """Write weights and buffers to a file whose metadata hold the recipe and the notes."""
    written = {key: str(value) for key, value in asdict(recipe).items()} | notes
    written |= {"normalisation": str(CIFAR10_NORM), "optimiser": "AdamW", "schedule": "one cycle"}
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata=written)


RECIPES: Mapping[str, Recipe] = {
    # The network that comes with the package was trained like this.
    "lenet": Recipe("lenet", epochs=100, lr=5e-3, weight_decay=0.05, gain=2.5, batch=64),
    "resnet18": Recipe("resnet18", smoothing=0.1, weight_decay=0.05),
    "resnet18_cifar": Recipe("resnet18_cifar", smoothing=0.1, weight_decay=0.05),
    "alexnet_flowers": Recipe("alexnet", epochs=8, lr=5e-4, batch=64, smoothing=0.1, size=224),
    # It is fully convolutional, so it is trained on smaller images to save time.
    "resnet18_flowers": Recipe("resnet18_cifar", epochs=8, batch=32, smoothing=0.1),
}
