"""Compare what an attacker may reach behind noise, by the estimate, with what matching reaches.

python -m benchmarks.noise_reach [--images 3] [--size 16] [--steps 1000]
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

import softleak as sl
from examples.flower.settings import NORM, Settings
from softleak.audit.metrics import psnr
from softleak.audit.reach import NoiseReach
from softleak.audit.weakest import root_mean_square
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.defenses import GaussianNoise
from softleak.labels.recover import recover
from softleak.matching import Adam, Matching

LEVELS = (2.0**-12, 0.125, 0.5, 1.0, 2.0, 4.0)  # of noise, in units of the update's own size


def main() -> None:
    """Read the command line, and print a row for each image and level of noise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--size", type=int, default=16, help="height and width of an image")
    parser.add_argument("--steps", type=int, default=1000, help="steps of Adam")
    given = parser.parse_args()
    print("| image | noise / size of the update | estimate | matching | time of both |")
    print("|---|---|---|---|---|")
    for image in range(given.images):
        for row in rows(image, given.size, given.steps):
            print(row, flush=True)


def rows(image: int, size: int, steps: int) -> list[str]:
    """Return a line for each level of noise on the update of one image."""
    settings = Settings(clients=image + 1, size=size)
    images, classes = settings.images()
    x, y = images[image], F.one_hot(classes[image], 10).float()
    subject = Subject.of(settings.network(), settings.shape)
    share = sl.capture(subject.model, x, y)
    scale = torch.tensor(NORM.std).reshape(3, 1, 1)
    found = []
    for level in LEVELS:
        sent = GaussianNoise(level * root_mean_square(share), 0)(share)
        start = time.process_time()
        told = NoiseReach.of(subject, share, x, y, scale).psnr(share, sent)
        middle = time.process_time()
        recovery = recover(subject, [sent], Knowledge(scale="known"))
        matching = Matching(optimiser=Adam(steps=steps))
        (matched,) = matching(subject, [sent], recovery)
        end = time.process_time()
        pixels = NORM.invert(x if matched.input is None else matched.input)
        seen = psnr(pixels, NORM.invert(x)) if matched.input is not None else float("nan")
        found.append(
            f"| {image} | {level:.2g} | {told:.1f} dB | {seen:.1f} dB | "
            f"{middle - start:.1f} and {end - middle:.1f} s |"
        )
    return found


if __name__ == "__main__":
    main()
