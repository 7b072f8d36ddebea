"""Shares in, verdicts out: for now, of the embedded images under the embedded network.

Truth is kept apart from the attack: it is drawn first, and read again only to score.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from softleak import data, models
from softleak.capture import capture
from softleak.head import find_head
from softleak.labels.evidence.probes import probe
from softleak.labels.recover import recover_labels
from softleak.metrics import label_error
from softleak.results import Recovery

KINDS: Mapping[str, data.Augmentation] = {
    "one-hot": data.Hard(),
    "smoothed": data.Smoothing(),
    "mixed": data.Mixup(),
    "arbitrary": data.Dirichlet(),
}


@dataclass(frozen=True, eq=False)
class AuditedShare:
    """One share: what was recovered from the head alone and from the whole, and the truth."""

    kind: str
    y_true: Tensor
    head_only: Recovery
    whole: Recovery

    @property
    def error(self) -> float:
        """The L1 error of the label from the whole share."""
        return label_error(self.whole, self.y_true)


@dataclass(frozen=True)
class EmbeddedAudit:
    """What the gradients of some embedded images gave away."""

    shares: tuple[AuditedShare, ...]
    class_names: tuple[str, ...]
    evidence: tuple[str, ...]
    seconds: float  # spent attacking, both ways, all shares


def audit_embedded(each: int, seed: int) -> EmbeddedAudit:
    """Attack ``each`` gradients for every kind of label, of a trained LeNet on CIFAR-10 images."""
    model, images = models.trained_lenet(), data.embedded()
    drawn = [
        (kind, sample)
        for number, (kind, augmentation) in enumerate(KINDS.items())
        for sample in data.samples(images, augmentation, each, seed + number, data.CIFAR10_NORM)
    ]
    shares = [capture(model, sample.x, sample.y) for _, sample in drawn]
    head = find_head(model)
    relations = probe(model, shares[0].input_shape, head=head)
    start = time.perf_counter()
    head_only = recover_labels(model, shares, evidence=False, head=head)
    whole = recover_labels(model, shares, evidence=relations, head=head)
    seconds = time.perf_counter() - start
    rows = tuple(
        AuditedShare(kind, sample.y, a, b)
        for (kind, sample), a, b in zip(drawn, head_only, whole, strict=True)
    )
    found = tuple(f"{relation.parameter}: {relation.explanation}" for relation in relations)
    return EmbeddedAudit(rows, images.class_names, found, seconds)
