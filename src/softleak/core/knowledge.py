"""What an attacker assumes, and what a report says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from softleak.core.errors import LabelError, OptionError, ShareError
from softleak.core.families import Family
from softleak.core.loss import CROSS_ENTROPY, Loss
from softleak.core.results import Recovery
from softleak.core.share import GradientShare, LocalTraining, Scale


@dataclass(frozen=True)
class Knowledge:
    """What is known or assumed of a share before it is attacked.

    Attributes:
        loss: the loss that the caller states. None means not stated: it is taken for the softmax
            cross-entropy, unless the numbers bear out another.
        family: the family of the label. None means any label, where other layers offer evidence;
            else one-hot, smoothed, mixed and smoothed mixed labels of two classes.
        scale: "known" if the caller states that the share is the gradient itself, "unknown" if it
            may be the gradient times any positive factor. None means what the share says itself.
        noise: the standard deviation of noise on every entry, if it was declared.
        samples: the number of samples behind a share of one step, if it is known.
        is_gradient: whether the caller states that the share is a gradient and not a difference of
            weights, whose sign is the opposite.
        head_only: whether only the gradient of the head's weight is used, as in the paper.
        client: the local training behind the share, if it is stated.
        lr: the learning rate that a difference of weights was divided by, if it is stated. A
            report repeats it; no attack takes it for granted.
        tolerance: the L1 distance below which two labels count as one answer.
    """

    family: Family | None = None
    scale: Scale | None = None
    noise: float = 0.0
    samples: int | None = None
    is_gradient: bool = False
    head_only: bool = False
    tolerance: float = 1e-3
    client: LocalTraining | None = None
    lr: float | None = None
    loss: Loss | None = None

    def __post_init__(self) -> None:
        if self.scale not in (None, "known", "unknown"):
            raise ShareError(f'scale should be "known", "unknown" or None, got {self.scale!r}')
        if not self.tolerance > 0:
            raise LabelError(
                f"tolerance should be a positive distance of labels, got {self.tolerance}"
            )
        family = self.family
        if family is not None and (isinstance(family, type) or not isinstance(family, Family)):
            raise LabelError(f"expected a label family such as Smoothed(), got {family!r}")
        if not self.noise >= 0:
            raise OptionError(f"noise should be a standard deviation, 0 or more, got {self.noise}")

    @property
    def scale_unknown(self) -> bool:
        """Return whether the share may be the gradient times any positive factor."""
        return self.scale == "unknown"

    @property
    def other_loss(self) -> Loss | None:
        """Return the stated loss, unless it is the plain cross-entropy."""
        return None if self.loss == CROSS_ENTROPY else self.loss

    def of(self, share: GradientShare) -> Knowledge:
        """Return what is known of this share; its own scale counts where none is stated here."""
        client = share.made_by or self.client
        scale = share.scale if self.scale is None else self.scale
        if (client, scale) == (self.client, self.scale):
            return self
        return replace(self, scale=scale, client=client)

    def assumptions(self, recovery: Recovery) -> tuple[str, ...]:
        """Return what an answer rests on, in sentences that its update does not contradict."""
        from softleak.present.fit import resting_on  # above this layer, where words are made

        return tuple(resting_on(self, recovery))
