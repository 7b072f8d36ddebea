"""Attack every sample of an update of several, and say what was found of each."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from torch import Tensor

from softleak.audit.composition import CompositionFinding
from softleak.audit.findings import LEAK_FEATURE_ERROR, InputFinding, PixelMap
from softleak.audit.options import Options
from softleak.batches.recover import read_batch
from softleak.batches.sparse.inputs import recover_by_inputs
from softleak.core.errors import in_a_line
from softleak.core.families import Family
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status, Told, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import describe_family

NOT_SEVERAL = because(Why.NOT_SEVERAL)
SPARE_CLASSES = 2  # a head of C classes tells fewer than C − 1 samples from each other


@dataclass(frozen=True, eq=False)
class SamplesFinding:
    """What was found of every sample of an update of several.

    Attributes:
        found: the samples; None if they were not attacked.
        reason: what was found and what it rests on, or why there was no attack.
        assumed: what the attack assumed of the client, in one sentence.
        pictures: the inputs in pixels, in the order of the samples, where a layer gives them.
        seconds: how long the attack took.
        searched: how the search for all inputs ended, if no layer gave them and one was made.
    """

    found: BatchRecovery | None = None
    reason: Told = NOT_SEVERAL
    assumed: str = ""
    pictures: tuple[Tensor, ...] = ()
    seconds: float = 0.0
    searched: InputFinding | None = None

    @property
    def message(self) -> str:
        """Return the reason in words, and that it is one for no attack."""
        return str(self.reason if self.attacked else because(Why.NOT_ATTACKED, why=self.reason))

    @property
    def attacked(self) -> bool:
        """Return whether samples were searched one by one."""
        return self.found is not None

    @property
    def samples(self) -> tuple[Recovery, ...]:
        """Return the samples that were found, proved or not."""
        return () if self.found is None else self.found.samples

    @property
    def proved(self) -> tuple[Recovery, ...]:
        """Return the samples whose label is proved."""
        return () if self.found is None else self.found.proved

    @property
    def size(self) -> int:
        """Return the number of samples behind the update, as far as it is known."""
        return 0 if self.found is None else self.found.size

    @property
    def features(self) -> int:
        """Return the number of samples whose feature is proved."""
        return sum(one.feature_error <= LEAK_FEATURE_ERROR for one in self.proved)

    @property
    def inputs(self) -> int:
        """Return the number of inputs that are given away, which is all of them or none."""
        if self.searched is not None:
            return len(self.pictures) if self.searched.leaked else 0
        whole = self.found is not None and self.found.status is Status.UNIQUE
        return len(self.pictures) if whole else 0

    @property
    def proved_inputs(self) -> int:
        """Return the number of inputs that are proved; a matched one is a candidate."""
        return self.inputs if self.searched is None or self.searched.method.exact else 0

    def with_inputs(self, searched: InputFinding) -> SamplesFinding:
        """Return the samples with the inputs that a search found of them."""
        if not searched.batch:
            return self
        return replace(self, pictures=searched.batch, searched=searched)


NO_SAMPLES = SamplesFinding()


def read_samples(
    subject: Subject, share: GradientShare, composition: CompositionFinding, options: Options
) -> SamplesFinding:
    """Attack every sample behind the gradient of several.

    Args:
        subject: the model made ready.
        share: the gradient of one step on all samples.
        composition: what is known of the update as a whole.
        options: what is asked for, and what is known beforehand.
    """
    if composition.signs:
        return SamplesFinding(reason=because(Why.SIGNS_OF_SEVERAL))
    knowledge, start = options.knowledge.of(share), time.perf_counter()
    try:
        found = _with_inputs(subject, share, knowledge, read_batch(subject, share, knowledge))
    except Exception as error:  # the attack runs the model, and its code may raise anything
        return SamplesFinding(reason=in_a_line(error))
    seconds = time.perf_counter() - start
    if not found.samples and found.size + SPARE_CLASSES > subject.head.classes:
        return SamplesFinding(reason=found.message, seconds=seconds)
    pictures = _pictures(found, options) if options.inputs else ()
    return SamplesFinding(found, found.message, _assumed(knowledge), pictures, seconds)


def _with_inputs(
    subject: Subject, share: GradientShare, knowledge: Knowledge, found: BatchRecovery
) -> BatchRecovery:
    """Return the samples with their inputs, if the first layer tells them.

    The first layer alone does not prove labels of a share whose scale nobody states. If the last
    layer proved all of them, it proved the scale as well, and the first layer is asked again.
    """
    if found.status is not Status.UNIQUE or found.inputs is not None or knowledge.scale_unknown:
        return found
    again = recover_by_inputs(subject, share, replace(knowledge, scale="known"))
    if again is None or again.status is not Status.UNIQUE or not _same_labels(found, again):
        return found
    return again


def _same_labels(one: BatchRecovery, other: BatchRecovery) -> bool:
    """Return whether two recoveries hold the same labels, in whatever order."""
    left = [(sample.label, sample.error) for sample in other.proved]
    for sample in one.proved:
        near = [
            pair
            for pair in left
            if sample.label is not None
            and pair[0] is not None
            and float((sample.label - pair[0]).abs().sum()) <= sample.error + pair[1]
        ]
        if not near:
            return False
        left = [pair for pair in left if pair is not near[0]]
    return not left


def _pictures(found: BatchRecovery, options: Options) -> tuple[Tensor, ...]:
    """Return the inputs that were recovered, in pixels."""
    if found.inputs is None or found.inputs.ndim < 2:
        return ()
    return tuple(PixelMap.of(x, options.normalisation)(x) for x in found.inputs)


def _assumed(knowledge: Knowledge) -> str:
    """Return what the attack on single samples rests on beside what every attack does."""
    said = (
        f"{knowledge.samples} samples, as was said" if knowledge.samples is not None
        else "as many samples as its head's gradient shows, no two of them with the same feature"
    )  # fmt: skip
    family: Family | None = knowledge.family
    labels = "one-hot, smoothed or mixed of two classes, or any where ReLU layers tell them"
    named = labels if family is None else describe_family(family)
    return f"The update is one step on {said}; their labels are {named}."
