"""Gradient matching as an audit runs it: from two independent starts, within a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.auditing.audit_options import Options
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.pixels import PixelMap
from softleak.matching import Adam, Matching, Noise, Reconstruction, usual_objective
from softleak.results import BatchRecovery, Recovery
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class TimedMatching:
    """Gradient matching from several starts, with as many steps as the time allows.

    The number of steps is fixed beforehand, so that the learning rate can fall to its end.

    Attributes:
        starts: where the searches begin.
        rehearsals: the steps of short runs that tell how long a step takes; the first of them only
            warms up.
        planned: the part of the time that is planned for.
        fewest_steps: the steps that are planned at least; the time limit ends them if need be.
    """

    starts: tuple[Noise, ...] = (Noise(0), Noise(1))
    rehearsals: tuple[int, ...] = (2, 8)
    planned: float = 0.9
    fewest_steps: int = 50

    def __call__(
        self,
        subject: Subject,
        share: GradientShare,
        recovery: Recovery | BatchRecovery,
        seconds: float,
    ) -> tuple[Reconstruction, ...]:
        """Return one reconstruction per start."""
        subject = replace(subject, said_shape=subject.input_shape)
        count, objective = len(self.starts), usual_objective(recovery)

        def run(steps: int, left: float) -> tuple[Reconstruction, ...]:
            matching = Matching(
                objective=objective,
                start=self.starts,
                optimiser=Adam(steps=steps),
                seconds=left,
            )
            return matching(subject, [share] * count, [recovery] * count)

        begin = last = time.perf_counter()
        for steps in self.rehearsals:
            last = time.perf_counter()
            run(steps, seconds)
        now = time.perf_counter()
        left = max(seconds - (now - begin), 0.0)
        possible = int(self.planned * left / (now - last) * self.rehearsals[-1])
        return run(min(Adam().steps, max(self.fewest_steps, possible)), left)


@dataclass(frozen=True)
class Agreement:
    """This is a measure of how well two images agree, relative to their own contrast.

    Two flat images do not agree by being flat, and one bright pixel does not make the rest agree.

    Attributes:
        contrast: the standard deviation of a usual photograph's pixels, of range one.
        most: the largest agreement in dB; more than that is equality.
        least_contrast: the contrast that every image is taken to have at least.
    """

    contrast: float = 0.25
    most: float = 120.0
    least_contrast: float = 1e-12

    def __call__(self, one: Tensor, other: Tensor) -> float:
        """Return the PSNR in dB between two images, were their contrast a usual one."""
        own = float(torch.minimum(one.std(), other.std()))
        off = float((one - other).square().mean().sqrt())
        if off == 0.0:
            return self.most
        return min(-20 * math.log10(self.contrast * off / max(own, self.least_contrast)), self.most)


def agreement_of(one: Tensor, other: Tensor) -> float:
    """Return how well two images agree, in dB, by the default measure."""
    return Agreement()(one, other)


def match_input(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Search for an input whose gradient is near the share's, from two starts.

    The inputs of a batch are searched for together, and agree as well as the worst of them does.

    Args:
        subject: the model made ready, with a shape of its inputs.
        share: what was sent.
        recovery: what was recovered from it.
        options: how long to search, and how pixels became inputs.

    Returns:
        The better of the two inputs, and how well both agree. None if no time was given, or if
        nobody knows which input the model takes.
    """
    if options.seconds <= 0 or subject.input_shape is None:
        return None
    found = TimedMatching()(subject, share, recovery, options.seconds)
    best = min(found, key=lambda one: one.misfit)
    if best.input is None:
        return InputFinding(Method.NONE, f"matching could not be carried out: {best.message}")
    to_pixels = PixelMap.of(best.input, options.normalisation)
    several = isinstance(recovery, BatchRecovery)
    pixels = [_rows(to_pixels(one.input), several) for one in found if one.input is not None]
    agreed = [agreement_of(*pair) for pair in zip(*pixels, strict=True) if len(pair) > 1]
    agreement = min(agreed, default=None)
    said = "" if agreement is None else f", and two starts agree to {agreement:.0f} dB"
    message = (
        f"gradients were matched: that of {'these images' if several else 'this image'} differs "
        f"from the share's by {best.misfit:.0%}{said}"
    )
    shown = _rows(to_pixels(best.input), several)
    return InputFinding(
        Method.MATCHING, message, shown[0], to_pixels=to_pixels, misfit=best.misfit,
        agreement=agreement, batch=shown if several else (),
    )  # fmt: skip


def _rows(pixels: Tensor, several: bool) -> tuple[Tensor, ...]:
    """Return the inputs of a batch one by one, or the only one."""
    return tuple(pixels) if several else (pixels,)
