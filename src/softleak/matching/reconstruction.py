"""This module holds the answer of gradient matching: an input, and how the search for it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from softleak.matching.gauss_newton.certificate import Certificate


class MatchStatus(Enum):
    """This is how a reconstruction ended. Only ``PROVED`` is a proof: otherwise the misfit says how
    near it came.
    """

    CONVERGED = "the loss hardly falls any more"
    EXHAUSTED = "all evaluations were used"
    EXPLAINED = "the start explains the gradient as well as its rounding allows, and is kept"
    OUT_OF_TIME = "out of time; the best iterate so far is kept"
    INTERRUPTED = "interrupted; the best iterate so far is kept"
    DIVERGED = "the loss became NaN or infinite; the best iterate before that is kept"
    NON_FINITE = "the share holds NaN or infinity: it matches nothing"
    ZERO_GRADIENT = "every gradient is zero: any input the model is sure of matches it"
    NO_LABEL = "no label or feature was recovered to reconstruct with"
    UNFIT = "the share, its label or its start does not fit the model"
    PROVED = "every layer is explained to within its rounding, and the share determines every pixel"


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """An input whose gradient comes near to the share's, and the label it was found with.

    Of a share of a batch, ``input``, ``label`` and ``error`` hold all B samples, in the order of
    the recovery.

    Attributes:
        status: how the search ended.
        input: the input, in the shape of one sample, or (B, …); None if nothing could be matched.
        label: the soft label (C,) it was found with, or (B, C); None if nothing could be matched.
        loss: the objective at the input, priors included.
        misfit: what remains of the gradient, relative to its size, without priors and features.
        evaluations: how often the loss and its gradient were evaluated, over all attempts.
        reason: what did not fit, if the status is ``UNFIT``; or why nothing is proved.
        error: the predicted standard error of each entry of the input, if its equations were
            solved (``GaussNewton``).
        certificate: what is proved of the input and why, if its equations were solved.
    """

    status: MatchStatus
    input: Tensor | None = None
    label: Tensor | None = None
    loss: float = float("inf")
    misfit: float = float("inf")
    evaluations: int = 0
    reason: str = ""
    error: Tensor | None = None
    certificate: Certificate | None = None

    @property
    def proved(self) -> bool:
        """Return whether the input is proved."""
        return self.status is MatchStatus.PROVED

    @property
    def psnr_predicted(self) -> float | None:
        """Return the PSNR in dB that ``error`` predicts, with the input's own range as the peak."""
        if self.certificate is None or self.error is None or self.input is None:
            return None
        wide = float(self.input.max() - self.input.min())
        return self.certificate.psnr_predicted(1 / wide if wide else 1.0)

    @property
    def message(self) -> str:
        """Return the outcome in a sentence."""
        return self.reason or self.status.value
