"""Draw the pictures of the docs from runs of this code on the embedded images.

    python -m benchmarks.pictures docs

Fig. 3 shows originals, ours and the paper's two optimisers, with the PSNR under each. App. D shows
100 recovered inputs of FCN-4 for each augmentation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import softleak as sl
from benchmarks.optimisers import by_cosine, l2, match
from softleak.audit.metrics import psnr
from softleak.paper import data, models
from softleak.paper.data import CIFAR10_NORM

COMPARED_IMAGES = 4  # the number of rows of the comparison
SHEET_SIDE = 10  # the number of images per row and per column of a sheet
UNTRAINED_VARIATION = 1e-2  # total variation for untrained nets, as in the paper


def attacked(
    model: nn.Module, augmentation: data.Augmentation, count: int
) -> list[tuple[data.Sample, sl.GradientShare, sl.Recovery, Tensor]]:
    """Return samples with their shares, the recovered labels and the inverted inputs."""
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 32, 32))
    found = []
    for sample in data.samples(data.embedded(), augmentation, count, 0, CIFAR10_NORM):
        share = sl.capture(model, sample.x, sample.y)
        recovery = sl.recover_label(model, share)
        image = sl.invert(model, share, recovery, chain=chain).input.view_as(sample.x)
        found.append((sample, share, recovery, image))
    return found


def comparison(path: Path) -> None:
    """Draw images as rows and methods as columns."""
    torch.manual_seed(0)
    model = models.uniform_(models.lenet()).eval()
    figure, axes = plt.subplots(
        COMPARED_IMAGES, 4, figsize=(7, 1.9 * COMPARED_IMAGES), layout="constrained"
    )
    for row, (sample, share, recovery, ours) in zip(
        axes, attacked(model, data.Mixup(), COMPARED_IMAGES), strict=True
    ):
        if recovery.label is None:
            raise RuntimeError(recovery.message)
        theirs = [
            match(model, share, recovery.label, s)
            for s in (by_cosine(UNTRAINED_VARIATION), l2(UNTRAINED_VARIATION))
        ]
        _row(row, sample.x, [ours, *theirs])
    titles = ("input, mixed", "softleak", "cosine, Adam 4800", "L2, L-BFGS 300")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _row(axes: Sequence[Axes], x: Tensor, images: Sequence[Tensor]) -> None:
    """Draw one row: the true image, and what each method recovers of it."""
    truth = CIFAR10_NORM.invert(x.double())
    for axis, found in zip(axes, [x, *images], strict=True):
        image = CIFAR10_NORM.invert(found.double())
        _show(axis, image)
        if found is not x:
            axis.set_xlabel(f"{psnr(image, truth):.0f} dB", fontsize=9)


def _show(axis: Axes, image: Tensor) -> None:
    """Draw one image without ticks."""
    axis.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])


def sheet(path: Path, augmentation: data.Augmentation) -> None:
    """Draw a hundred recovered inputs, and print the PSNR of the worst."""
    torch.manual_seed(0)
    model = models.fcn4(10, 32).eval()
    found = attacked(model, augmentation, SHEET_SIDE**2)
    images = [CIFAR10_NORM.invert(image).clamp(0, 1) for *_, image in found]
    rows = [torch.cat(images[i : i + SHEET_SIDE], 2) for i in range(0, len(images), SHEET_SIDE)]
    plt.imsave(path, torch.cat(rows, 1).permute(1, 2, 0).numpy())
    truths = (CIFAR10_NORM.invert(sample.x.double()) for sample, *_ in found)
    worst = min(psnr(image, truth) for image, truth in zip(images, truths, strict=True))
    print(f"{path.name}: the worst of {len(found)} images has {worst:.1f} dB")


def main() -> None:
    """Draw all pictures into the folder that the command line names."""
    folder = Path(sys.argv[1])
    sheet(folder / "sheet_smoothing.png", data.Smoothing())
    sheet(folder / "sheet_mixup.png", data.Mixup())
    comparison(folder / "reconstructions.png")


if __name__ == "__main__":
    main()
