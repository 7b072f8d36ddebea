"""Measure what declared noise and float16 cost an inverted image, beside what is predicted.

python -m benchmarks.noise
"""

from __future__ import annotations

import torch
from torch import nn

import softleak as sl
from softleak.audit.metrics import psnr
from softleak.paper import data, models

NOISE_STDS = (1e-5, 1e-4, 1e-3, 1e-2)


def variants(share: sl.GradientShare) -> dict[str, sl.GradientShare]:
    """Return a share as it is, in float16, and with Gaussian noise on every entry."""
    found = {"float32": share, "float16": share.map(lambda _, g: g.half())}
    for size in NOISE_STDS:
        generator = torch.Generator().manual_seed(0)
        noise = {n: torch.randn(g.shape, generator=generator) for n, g in share.items()}
        noisy = share.map(lambda n, g, s=size, e=noise: g + s * e[n])  # type: ignore[misc]
        found[f"noise {size:.0e}"] = noisy.expecting(size)
    return found


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        "MLP, 512 and 256 units": models.mlp(3072, (512, 256)),
        "LeNet": models.lenet(),
    }
    sample = next(data.samples(data.embedded(), data.Smoothing(), 1, 3, data.CIFAR10_NORM))
    truth = data.CIFAR10_NORM.invert(sample.x.double())
    print("| network | gradients | PSNR | predicted | determined |\n|---|---|---|---|---|")
    for name, model in nets.items():
        for kind, share in variants(sl.capture(model.eval(), sample.x, sample.y)).items():
            recovery = sl.recover_label(model, share)
            inverted = sl.invert(model, share, recovery, pixel=data.CIFAR10_NORM.scale)
            image = data.CIFAR10_NORM.invert(inverted.input.view_as(truth))
            figures = f"{psnr(image, truth):.0f} dB | {inverted.psnr_predicted:.0f} dB"
            print(f"| {name} | {kind} | {figures} | {'yes' if inverted.determined else 'no'} |")


if __name__ == "__main__":
    main()
