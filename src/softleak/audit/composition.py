"""What an update of several samples still gives away: how many, which classes, how often each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.audit.undecayed import undecayed
from softleak.labels.batch import Batch, BatchReader
from softleak.labels.signs import is_sign_pattern
from softleak.results import Recovery, Status
from softleak.share import GradientShare

SLACK = 1e-3  # of a sample: what rounding may add to a bound


@dataclass(frozen=True)
class Counts:
    """Samples of each class: an estimate, and the bounds that a single step proves.

    A mean gradient has ``B·(−δ_c) = n_c − Σ p_c`` with probabilities p, so ``n_c ≥ −B·δ_c``; all
    counts sum to B, which bounds each from above. Without a head bias there are no bounds.
    """

    estimated: tuple[int, ...]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompositionFinding:
    """The classes proved to be among the labels, and what else is known of their number.

    ``otherwise`` are the classes that would be proved if the file held a difference of weights
    after − before and not a gradient, as long as nobody said which of the two it is.
    """

    samples: int = 1  # at least: samples, or steps on the same ones
    present: tuple[int, ...] = ()
    counts: Counts | None = None
    message: str = "not attacked: the label of a single sample was read instead"
    attacked: bool = False
    otherwise: tuple[int, ...] = ()
    signs: bool = (
        False  # whether the update is a pattern of signs, which has no label of one sample
    )


def mixes(recovery: Recovery, found: CompositionFinding) -> bool:
    """Whether an update is of several samples or steps: by its label's proof, or by its rank.

    A label that is only guessed, or that nothing explains, is no reason to think of one sample.
    """
    unexplained = recovery.status in (Status.GUESS, Status.NO_SOLUTION)
    return recovery.status is Status.NOT_SINGLE or (unexplained and found.samples > 1)


def read_composition(
    reader: BatchReader,
    share: GradientShare,
    samples: int | None,
    declared: bool,
    parameters: Mapping[str, Tensor],
) -> CompositionFinding:
    """What a share of several samples says; counts if the number of ``samples`` was said.

    Whoever says that number says that the share is the mean gradient of one step on them. The
    ``parameters`` are the model's: weight decay is undone with them.
    """
    if is_sign_pattern(share[reader.head.weight_name]):
        return _by_signs(reader, share)
    whole = samples if share.scale != "unknown" else None
    share, batch = _read(reader, share, whole, parameters)
    counts, doubt = _counts(reader, share, batch, whole)
    flipped = () if declared or not batch.present else reader.read(share.scaled(-1)).present
    said = [batch.message, *([doubt] if doubt else [])]
    if samples is not None and whole is None:
        said.append("classes were not counted, because the scale of the update is unknown")
    if flipped:
        said.append(
            "if the file holds a difference of weights (after − before), not a gradient, the "
            f"classes are {_written(flipped)} instead: say --kind"
        )
    attacked = bool(batch.present) or could_prove(reader, share)
    if not attacked:
        said.insert(0, "not attacked: no attack applies")
    return CompositionFinding(
        batch.gradients, batch.present, counts, "; ".join(said), attacked, flipped
    )  # fmt: skip


def _read(
    reader: BatchReader,
    share: GradientShare,
    samples: int | None,
    parameters: Mapping[str, Tensor],
) -> tuple[GradientShare, Batch]:
    """The share without weight decay if it has any, and what every way to take it off proves."""
    undone = undecayed(reader.head, share, parameters)
    if not undone:
        return share, reader.read(share, samples)
    batches = [reader.read(tried.share, samples) for tried in undone]
    present = set.intersection(*(set(batch.present) for batch in batches))
    message = f"weight decay of {undone[0].decay:.2g} undone, {batches[0].message}"
    first = replace(batches[0], present=tuple(sorted(present)), message=message)
    return undone[0].share, first


def _by_signs(reader: BatchReader, share: GradientShare) -> CompositionFinding:
    """Classes whose entries have the sign of ``p − y < 0``, which Adam's first step keeps."""
    head = reader.head
    negative = torch.zeros(head.classes, dtype=torch.bool)
    if head.has_bias and head.bias_name in share:
        negative = share[head.bias_name].cpu() < 0
    elif reader.never_negative:
        negative = (share[head.weight_name].cpu() < 0).any(1)
    present = tuple(negative.nonzero()[:, 0].tolist())
    message = (
        "every entry of the head's gradient has the same size, as one step of Adam or signSGD "
        f"leaves it; its signs prove {len(present)} classes"
    )
    attacked = could_prove(reader, share)
    if not attacked:
        message = f"not attacked: no attack applies, as the head has no bias; {message}"
    return CompositionFinding(1, present, None, message, attacked, signs=True)


def _counts(
    reader: BatchReader, share: GradientShare, batch: Batch, samples: int | None
) -> tuple[Counts | None, str]:
    """The counts, or why none are claimed."""
    if batch.counts is None or samples is None:
        return None, ""
    if batch.gradients > samples:
        return None, f"it is not one step on {samples} samples, so that classes were not counted"
    head, estimated = reader.head, batch.counts.tolist()
    if not head.has_bias or head.bias_name not in share:
        return Counts(tuple(estimated)), "the counts are an estimate whose error is not known"
    low = _at_least(share[head.bias_name], batch, samples)
    spare = samples - sum(low)
    if spare < 0:
        return None, (
            f"it is not the mean gradient of one step on {samples} samples (one such step has "
            f"at least {sum(low)}), so that classes were not counted"
        )
    high = [least + spare for least in low]
    within = [min(max(n, a), b) for n, a, b in zip(estimated, low, high, strict=True)]
    return Counts(tuple(within), tuple(low), tuple(high)), ""


def _at_least(delta: Tensor, batch: Batch, samples: int) -> list[int]:
    """``n_c ≥ −B·δ_c``, and one of each class that is proved to be there."""
    bounds = (-samples * delta.double()).tolist()
    low = [max(math.ceil(bound - SLACK), 0) for bound in bounds]
    return [max(n, int(i in batch.present)) for i, n in enumerate(low)]


def could_prove(reader: BatchReader, share: GradientShare) -> bool:
    """Whether signs say anything of classes: by a head's bias, or by features never negative."""
    return (reader.head.has_bias and reader.head.bias_name in share) or reader.never_negative


def _written(classes: tuple[int, ...]) -> str:
    return ", ".join(map(str, classes))
