"""Table 4: inputs of an untrained LeNet when the recovered feature is matched as well."""

from __future__ import annotations

from collections.abc import Mapping

from softleak.experiments.experiment import Experiment
from softleak.experiments.image_scores import LPIPS, PSNR, QUALITIES, SSIM
from softleak.experiments.matching import (
    MIXED_PROTOCOL,
    SMOOTHED_PROTOCOL,
    MatchingCell,
    SamplingProtocol,
)
from softleak.matching import L2, Cosine, RecoveredLabel

# α of the head's gradient, and β of the feature.
TERM_WEIGHTS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (2.0, 2.0))
WEIGHT_TITLES = tuple(f"α={a:g} β={b:g}" for a, b in TERM_WEIGHTS)
Values = tuple[float, ...]  # PSNR, SSIM or LPIPS, in the order of the weights
TABLE4_PAPER: Mapping[tuple[SamplingProtocol, type[L2 | Cosine]], tuple[Values, Values, Values]] = {
    (MIXED_PROTOCOL, L2): (
        (29.04, 34.09, 29.28, 34.18, 29.53), (0.677, 0.763, 0.686, 0.762, 0.691),
        (0.124, 0.089, 0.120, 0.088, 0.116),
    ),
    (MIXED_PROTOCOL, Cosine): (
        (25.71, 28.75, 25.89, 28.81, 25.92), (0.856, 0.918, 0.857, 0.918, 0.858),
        (0.034, 0.015, 0.033, 0.015, 0.032),
    ),
    (SMOOTHED_PROTOCOL, L2): (
        (20.49, 24.96, 21.00, 24.65, 20.80), (0.535, 0.690, 0.578, 0.683, 0.559),
        (0.176, 0.114, 0.162, 0.117, 0.167),
    ),
    (SMOOTHED_PROTOCOL, Cosine): (
        (23.02, 25.79, 23.27, 25.85, 23.34), (0.817, 0.885, 0.824, 0.887, 0.824),
        (0.035, 0.017, 0.032, 0.016, 0.032),
    ),
}  # fmt: skip

TABLE4 = Experiment(
    "table4",
    "Table 4: inputs of an untrained LeNet, with the last layer's feature",
    tuple(
        MatchingCell(
            protocol, "lenet", dict(zip((PSNR, SSIM, LPIPS), values, strict=True)),
            kind(*weights), "ours", RecoveredLabel(),
        )
        for (protocol, kind), images in TABLE4_PAPER.items()
        for weights, values in zip(TERM_WEIGHTS, zip(*images, strict=True), strict=True)
    ),
    QUALITIES,
    samples=15,
    paper_repeats=10,
    across={title: f" {title}, ours" for title in WEIGHT_TITLES},
)  # fmt: skip
