"""This module says in sentences what was found of a batch, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from softleak.batches.head_reading import HeadReading
from softleak.batches.head_space import HeadSpace
from softleak.knowledge import Knowledge
from softleak.labels.messages import describe_family
from softleak.results import Recovery, Status

WHOLE_SAMPLES = 1e-3  # relative: a number this near to a whole one may be a number of samples


def of_reading(
    reading: HeadReading, samples: Sequence[Recovery], size: int, knowledge: Knowledge
) -> str:
    """Return what was found of a batch."""
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    said = [f"{len(samples)} of {size} samples found, {proved} of them proved"]
    said.append(
        "the labels are assumed to be "
        + (describe_family(reading.family) if knowledge.family else "one-hot, smoothed or mixed")
    )
    if not reading.whole:
        said.append("the others fit no label of that kind, or were not found")
    if reading.scale != 1.0:
        said.append(_of_scale(reading, size, knowledge))
    if reading.whole and len(samples) < size:
        said.append("the others have no gradient that stands out of rounding")
    if knowledge.samples is None:
        said.append("no two samples are assumed to have the same feature")
    elif proved:
        said.append(f"that there are {size} samples, and no more that look alike, is taken as said")
    bits = float(reading.certificate.bits.min())
    said.append(f"the equations test {bits:.0f} bits beyond the unknowns")
    return "; ".join(said)


def _of_scale(reading: HeadReading, size: int, knowledge: Knowledge) -> str:
    """Return what the scale that was found means."""
    times = reading.scale * size
    if knowledge.scale_unknown:
        return f"the share is {1 / reading.scale:.4g} times the mean gradient of {size} samples"
    numbers = (
        f"the numbers are those of a sum over the samples divided by {times:.6g}, not by {size}"
    )
    if abs(times - round(times)) > WHOLE_SAMPLES * times:
        return f"{numbers}: the share was scaled, or the learning rate or optimiser is another"
    return f"{numbers}: the batch has {times:.6g} samples, or the share was scaled"


def of_one(proved: bool, tested: bool, error: float, knowledge: Knowledge) -> str:
    """Return what is said of one sample."""
    if proved:
        return f"one label explains this sample's part of the gradient, to within {error:.1g}"
    if knowledge.samples is None:
        return (
            "this label fits if the batch has no more samples than the gradient shows; say their "
            "number, since several samples can look like one"
        )
    if not tested:
        return "this label fits, but too few equations test it"
    if error < knowledge.tolerance:
        return (
            "this label fits to within rounding, but it is not proved: the batch is not at the "
            "scale or of the size that was said, or two of its samples are nearly alike"
        )
    return (
        f"this label fits, but rounding leaves it open to within {error:.1g} in L1, more than "
        f"{knowledge.tolerance:.1g}: another sample is too much like this one"
    )


def of_several_as_one(size: int, found: bool) -> str:
    """Return what is said if several samples were announced and the gradient shows only one."""
    shown = (
        f"the head's gradient shows one sample where {size} were announced: the others have no "
        "gradient that stands out of rounding, or the same feature or difference p − y as this one."
    )
    if found:
        return f"{shown} The label is that of all of them taken as one sample, so nothing is proved"
    return f"{shown} All of them taken as one sample have no label"


def too_few(rank: int, size: int) -> str:
    """Return what is said if fewer samples were announced than the gradient shows."""
    return (
        f"the head's gradient is of rank {rank}, so at least {rank} gradients were added up, where "
        f"{size} samples were announced: the batch is larger, or it took several steps"
    )


def unsolvable(space: HeadSpace, size: int, knowledge: Knowledge) -> str:
    """Return what is said if no sample was found."""
    if space.rank + 2 > space.classes:
        return (
            f"the head's gradient of {space.classes} classes has rank {space.rank}: with as many "
            "samples as classes, the head alone does not tell one from another"
        )
    named = describe_family(knowledge.family) if knowledge.family else "one-hot, smoothed or mixed"
    return (
        f"the head's gradient is of rank {space.rank}, so at least {space.rank} gradients were "
        f"added up, but no sample of a label that is {named} was found in it: the batch of "
        f"{size} has other labels, took several steps, or is too large for the search"
    )


def unbalanced() -> str:
    """Return what is said if the columns of the head's gradient do not sum to zero."""
    return (
        "The columns of the head's gradient do not sum to zero, as those of a cross-entropy do: it "
        "carries noise, or was altered."
    )
