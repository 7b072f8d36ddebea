"""This module says how the damping of Levenberg–Marquardt steps follows their success."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Damping:
    """These settings say how the damping follows the success of the steps.

    Attributes:
        first: the damping of the first step, relative to the diagonal of the normal matrix.
        least: the least damping.
        raised: the factor by which it grows if a step does not lower the misfit.
        lowered: the factor by which it falls after a step that does as the linear model promises.
        tries: how often a step is tried before the walk counts as stuck.
        good: the part of the promised decrease from which on the damping falls.
        poor: the part below which it doubles.
        smoothness: the power of the frequency by which changes of an image are damped; zero means
            that every pixel is damped by itself.
    """

    first: float = 1e-2
    least: float = 1e-14
    raised: float = 10.0
    lowered: float = 0.1
    tries: int = 8
    good: float = 0.5
    poor: float = 0.25
    smoothness: float = 2.0

    def cautious(self, smooth: bool) -> Damping:
        """Return the damping of a further attempt: it begins high and falls slowly.

        Where rough parts of an image are let go too early they go astray and do not come back.

        Args:
            smooth: whether rough parts are damped as much as in the first attempt, or less.
        """
        slow = replace(self, first=max(self.first, 1.0), lowered=max(self.lowered, 0.4))
        return slow if smooth else replace(slow, smoothness=self.smoothness / 2)

    def after(self, damping: float, gain: float) -> float:
        """Return the damping of the next step, from the part of the promise that was kept."""
        if gain > self.good:
            return max(damping * self.lowered, self.least)
        return damping * 2 if gain < self.poor else damping
