"""This module asks whether an input is within an attacker's reach behind a defence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from softleak.auditing.defended_attack import Target
from softleak.auditing.findings import LEAK_THRESHOLDS
from softleak.errors import ModelError
from softleak.matching.gauss_newton.noise_reach import NoiseReach
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True, eq=False)
class InputReach:
    """This says whether an image behind a defence could be estimated, without estimating it.

    A walk back through the layers breaks at the first noise, while matching gradients does not.
    Matching takes minutes for each setting of a defence, and an estimate of its error a moment.

    Attributes:
        subject: the model made ready.
        target: the share, and the input behind it.
    """

    subject: Subject
    target: Target

    @cached_property
    def estimate(self) -> NoiseReach | None:
        """The gradient linearised at the sample; None if the sample is not known or too large."""
        target, shape = self.target, self.subject.tensor_shape
        x = target.input
        if target.label is None or x is None or target.to_pixels is None or shape is None:
            return None
        try:
            return NoiseReach.of(
                self.subject, target.share.share, x.reshape(shape).float(), target.label.float(),
                target.to_pixels.scale,
            )  # fmt: skip
        except ModelError:  # too large, or dropout is active
            return None

    def shows(self, sent: GradientShare) -> bool:
        """Return whether a recognisable image is within reach, as far as that can be estimated."""
        if self.estimate is None:
            return False
        return self.estimate.exceeds(self.target.share.share, sent, LEAK_THRESHOLDS.recognisable)
