"""Compare images matched by gradients with the same images polished by Gauss–Newton.

    python -m benchmarks.gauss_newton_polish [--kind "LeNet, sigmoid"] [--images 10] [--steps 300]

Label and feature are recovered from the share. Matching begins at noise and takes so many steps of
L-BFGS. The polish begins where matching ended, and replaces the image only by one that is proved.
Times are processor seconds. The PSNR is that of pixels of range one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.gauss_newton import PIXEL
from benchmarks.smooth_networks import KINDS, build, images
from softleak.matching import LBFGS, GaussNewton


@dataclass(frozen=True)
class PolishScore:
    """One image: its PSNR and the processor seconds, matched alone and with the polish."""

    matched: float
    polished: float
    proved: bool
    seconds: tuple[float, float]


def polished(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> Iterator[PolishScore]:
    """Yield a score for each of the images (N, …) with labels (N, C)."""
    optimiser = LBFGS(steps=steps)
    for one, label in zip(x, y, strict=True):
        share = sl.capture(model, one, label)
        recovery = sl.recover_label(model, share)
        times = [time.process_time()]
        before = sl.reconstruct(model, share, recovery, optimiser=optimiser)
        times.append(time.process_time())
        after = sl.reconstruct(model, share, recovery, optimiser=optimiser, polish=GaussNewton())
        times.append(time.process_time())
        yield PolishScore(
            quality(before.input, one), quality(after.input, one), after.proved,
            (times[1] - times[0], times[2] - times[1]),
        )  # fmt: skip


def quality(found: Tensor | None, truth: Tensor) -> float:
    """Return the PSNR of an image in dB; that of no image is zero."""
    if found is None:
        return 0.0
    off = (found.double() - truth.double()) * PIXEL
    return -10 * math.log10(float(off.square().mean()) + 1e-300)


def main() -> None:
    """Polish every image and print what became of it."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", default="LeNet, sigmoid", choices=list(KINDS))
    parser.add_argument("--size", type=int, default=16, help="side of the image")
    parser.add_argument("--images", type=int, default=10, help="the number of images")
    parser.add_argument("--steps", type=int, default=300, help="steps of matching")
    given = parser.parse_args()
    x, y = images(given.images, given.size, 3)
    found = []
    for score in polished(build(given.kind, given.size), x, y, given.steps):
        found.append(score)
        print(
            f"matched {score.matched:.1f} dB in {score.seconds[0]:.1f} s, polished "
            f"{score.polished:.1f} dB in {score.seconds[1]:.1f} s"
            f"{', proved' if score.proved else ''}",
            flush=True,
        )
    print(
        f"median of {len(found)}: matched {median(s.matched for s in found):.1f} dB, polished "
        f"{median(s.polished for s in found):.1f} dB, {sum(s.proved for s in found)} proved"
    )


if __name__ == "__main__":
    main()
