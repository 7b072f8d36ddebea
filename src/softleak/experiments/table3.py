"""This module holds Table 3: inputs of LeNet by gradient matching with five sources of labels, the
same polished by Gauss–Newton, and by inversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from softleak.experiments.experiment import Cell, Column, Experiment, Unit
from softleak.experiments.image_scores import LPIPS, PSNR, QUALITIES, SSIM
from softleak.experiments.matching import (
    MIXED_PROTOCOL,
    SMOOTHED_PROTOCOL,
    ExactCell,
    MatchingCell,
    SamplingProtocol,
)
from softleak.matching import (
    L2,
    Cosine,
    GaussNewton,
    HardLabel,
    LabelSource,
    RandomLabel,
    RecoveredLabel,
)

SOURCES: Mapping[str, LabelSource | None] = {
    "GT": None,
    "iDLG": HardLabel(),
    "DLG": RandomLabel(),
    "ours": RecoveredLabel(),
    "DLG+ours": RecoveredLabel(free=True),
}
Values = tuple[float, ...]  # of GT, iDLG, DLG, ours, DLG+ours
POLISHED = "polished"
LABEL_L1 = "L1"  # the measure that holds the L1 error of the label
Setting = tuple[SamplingProtocol, str, type[L2 | Cosine]]
# PSNR, SSIM and LPIPS of all five sources, and then the L1 error of the labels of DLG and ours.
TABLE3_PAPER: Mapping[Setting, tuple[Values, Values, Values, Values]] = {
    (MIXED_PROTOCOL, "lenet", L2): (
        (28.27, 10.70, 24.26, 28.24, 27.81), (0.640, 0.099, 0.553, 0.644, 0.659),
        (0.141, 0.355, 0.172, 0.138, 0.130), (0.44, 5e-6),
    ),
    (MIXED_PROTOCOL, "lenet trained", L2): (
        (19.28, 9.34, 16.93, 19.29, 17.30), (0.628, 0.020, 0.500, 0.628, 0.519),
        (0.062, 0.394, 0.113, 0.063, 0.102), (0.15, 8e-6),
    ),
    (MIXED_PROTOCOL, "lenet", Cosine): (
        (25.76, 23.01, 26.45, 25.81, 26.51), (0.858, 0.745, 0.881, 0.859, 0.882),
        (0.033, 0.053, 0.027, 0.033, 0.027), (0.11, 5e-6),
    ),
    (MIXED_PROTOCOL, "lenet trained", Cosine): (
        (24.56, 15.51, 22.71, 24.67, 24.84), (0.741, 0.356, 0.688, 0.746, 0.758),
        (0.046, 0.173, 0.053, 0.044, 0.040), (0.05, 8e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet", L2): (
        (21.33, 10.64, 18.98, 20.94, 21.00), (0.587, 0.129, 0.492, 0.584, 0.590),
        (0.150, 0.351, 0.192, 0.149, 0.149), (0.37, 4e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet trained", L2): (
        (11.70, 8.72, 11.86, 11.61, 11.47), (0.267, 0.029, 0.283, 0.260, 0.244),
        (0.250, 0.401, 0.236, 0.259, 0.264), (0.36, 8e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet", Cosine): (
        (23.13, 22.89, 24.09, 23.06, 24.26), (0.820, 0.807, 0.865, 0.818, 0.868),
        (0.034, 0.032, 0.023, 0.035, 0.022), (0.20, 4e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet trained", Cosine): (
        (18.99, 17.40, 18.56, 18.98, 20.42), (0.615, 0.558, 0.614, 0.614, 0.691),
        (0.095, 0.121, 0.088, 0.095, 0.069), (0.17, 8e-6),
    ),
}  # fmt: skip


def _matched() -> Iterator[Cell]:
    """Yield a cell for each setting and each source of the label."""
    for (protocol, subject, kind), (*images, (dlg, ours)) in TABLE3_PAPER.items():
        for (method, source), values in zip(
            SOURCES.items(), zip(*images, strict=True), strict=True
        ):
            paper = dict(zip((PSNR, SSIM, LPIPS), values, strict=True))
            errors = {"DLG": dlg, "ours": ours}
            paper |= {LABEL_L1: errors[method]} if method in errors else {}
            yield MatchingCell(protocol, subject, paper, kind(), method, source)


def _polished() -> Iterator[Cell]:
    """Yield the cells of "ours" polished by Gauss–Newton, each beside the paper's "ours"."""
    column = list(SOURCES).index("ours")
    for (protocol, subject, kind), (*images, _) in TABLE3_PAPER.items():
        paper = dict(zip((PSNR, SSIM, LPIPS), (one[column] for one in images), strict=True))
        yield MatchingCell(
            protocol, subject, paper, kind(), POLISHED, RecoveredLabel(), together=1,
            polish=GaussNewton(),
        )  # fmt: skip


def _exact() -> Iterator[Cell]:
    """Yield the cells of exact inversion, each beside the best of the paper's ten values."""
    for protocol in (MIXED_PROTOCOL, SMOOTHED_PROTOCOL):
        for subject in ("lenet", "lenet trained"):
            both = [TABLE3_PAPER[protocol, subject, kind] for kind in (L2, Cosine)]
            psnr, ssim, lpips = (sum((each[i] for each in both), ()) for i in range(3))
            best = {PSNR: max(psnr), SSIM: max(ssim), LPIPS: min(lpips)}
            yield ExactCell(protocol, subject, best)


TABLE3 = Experiment(
    "table3",
    "Table 3: inputs of LeNet, exact inversion beside the best of the paper's five",
    (*_exact(), *_matched(), *_polished()),
    (*QUALITIES, Column("label's L1", LABEL_L1, Unit.SMALL, LABEL_L1, higher=False)),
    samples=15,
    paper_repeats=10,
    across={
        **{method: f" α=1 β=0, {method}" for method in (*SOURCES, POLISHED)},
        "exact": ", exact inversion",
    },
)
