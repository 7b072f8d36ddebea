"""Shares in, reports out: labels all at once, then the input behind each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from softleak.audit.composition import CompositionFinding, mixes, read_composition
from softleak.audit.diagnosis import check_not_weights, notes
from softleak.audit.findings import FeatureFinding, InputFinding, LabelFinding, Method
from softleak.audit.inputs import recover_input
from softleak.audit.reports import AuditReport
from softleak.audit.rereading import reread
from softleak.audit.scalar import ScalarView
from softleak.audit.subject import Subject
from softleak.audit.truth import Truth
from softleak.audit.words import assumptions
from softleak.data import Normalisation
from softleak.errors import ShareError, in_a_line
from softleak.factors import head_gradients
from softleak.labels.families import Family
from softleak.labels.recover import recover_labels
from softleak.naming import aligned
from softleak.results import Recovery, Status
from softleak.share import GradientShare, Scale

LARGEST = 1e9  # of a gradient's entries: features of a network are not larger
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What is asked, and what is known beforehand."""

    family: Family | None = None  # of the labels, if known
    scale: Scale | None = None  # None: what the share says of itself
    noise: float = 0.0  # the standard deviation of noise the share is known to carry
    inputs: bool = True
    seconds: float = 30.0  # a share, for matching gradients where a model cannot be inverted
    views: bool = True
    normalisation: Normalisation | None = None
    samples: int | None = None  # behind a share that is the mean gradient of one step on them
    declared: bool = False  # whether somebody says that shares are gradients, not differences


@dataclass(frozen=True, eq=False)
class NamedShare:
    """A share, where it came from, and the truth behind it if somebody has it."""

    name: str
    share: GradientShare
    truth: Truth | None = None
    fingerprint: str = ""


def audit(
    model: nn.Module,
    share: GradientShare,
    *,
    options: Options | None = None,
    truth: Truth | None = None,
    input_shape: tuple[int, ...] | None = None,
    name: str = "share",
) -> AuditReport:
    """Everything one share gives away, by the strongest method that applies.

    ``truth`` is read after the answer, only to score it.
    """
    options = options or Options()
    subject = Subject.of(model, input_shape or share.input_shape, inputs=options.inputs)
    fitted = None if truth is None else truth.fitted(subject.head.classes, subject.input_shape)
    ready = NamedShare(name, prepared(subject, share, options), fitted)
    return next(audit_shares(subject, [ready], options))


def prepared(subject: Subject, share: GradientShare, options: Options) -> GradientShare:
    """The share under the model's names, checked; raises ``ShareError`` with what is wrong."""
    _check_input_shape(subject, share)
    parameters = dict(subject.model.named_parameters())
    share = aligned(share, subject.model)
    share.check_shapes(parameters)
    head_gradients(subject.head, [share])
    # Two checkpoints have running statistics as well, whose difference is no gradient.
    share = share.without(*(share.keys() - parameters.keys()))
    share.check_finite()
    huge = [n for n, g in share.items() if g.numel() and float(g.abs().max()) > LARGEST]
    if huge:
        raise ShareError(
            f"the gradient {min(huge)!r} has entries above {LARGEST:.0e}, as no cross-entropy "
            "gives; the file is damaged, or not of gradients"
        )
    check_not_weights(subject, share)
    return share.expecting(options.noise) if options.noise else share


def _check_input_shape(subject: Subject, share: GradientShare) -> None:
    """Evidence and chain hold for one shape: what they say of another would be wrong."""
    expected, came = subject.input_shape, share.input_shape
    if expected is not None and came is not None and came != expected:
        raise ShareError(
            f"the share is of an input of shape {came}, the model was made ready for {expected}; "
            f"give --input-shape {','.join(map(str, came))} (input_shape in Python) and audit "
            "shares of other shapes apart"
        )


def recover(
    subject: Subject, shares: Sequence[GradientShare], options: Options
) -> tuple[Recovery, ...]:
    """The labels behind shares, by all the subject offers and all that is known of them."""
    return recover_labels(
        subject.model, shares, family=options.family, evidence=subject.relations,
        scale=options.scale, head=subject.head, input_shape=subject.input_shape,
    )  # fmt: skip


def audit_shares(
    subject: Subject,
    shares: Sequence[NamedShare],
    options: Options,
    progress: Progress = lambda _: None,
) -> Iterator[AuditReport]:
    """A report each, in order, of shares that were ``prepared``."""
    start = time.perf_counter()
    recoveries = recover(subject, [named.share for named in shares], options)
    each = (time.perf_counter() - start) / max(len(shares), 1)
    for named, first in zip(shares, recoveries, strict=True):
        progress(named.name)
        recovery = _reread(subject, named.share, first, options)
        composition = _composition(subject, named.share, recovery, options)
        yield _report(subject, named, LabelFinding(recovery, each), composition, options)


def _report(
    subject: Subject,
    named: NamedShare,
    label: LabelFinding,
    composition: CompositionFinding,
    options: Options,
) -> AuditReport:
    """One share's findings together; the truth is read here, after the answer."""
    recovery, truth = label.recovery, named.truth
    share, followed = _followed(subject, named.share, recovery, options)
    found = _input(subject, share, followed, composition, options)
    scale = options.scale or named.share.scale
    return AuditReport(
        named.name,
        label,
        FeatureFinding.of(followed),
        found,
        assumptions(recovery, found, scale == "unknown", options.noise),
        ScalarView.of(subject.head, named.share, recovery) if options.views else None,
        None if truth is None else truth.score(recovery, found, options.normalisation),
        named.fingerprint,
        composition,
        notes(subject, named.share, recovery),
    )


def _reread(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> Recovery:
    """What another scale makes of a share that no label explains, unless its scale was vouched."""
    if options.scale is not None or share.scale is not None:
        return recovery
    unknown = replace(options, scale="unknown")
    return reread(
        recovery, share, lambda one: recover(subject, [one], unknown)[0], not options.declared
    )


def _followed(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> tuple[GradientShare, Recovery]:
    """A share that only makes sense at another scale or sign, read so; else as it is.

    The label stays what it was called; what depends on it is attacked under that reading.
    """
    if not recovery.readings or recovery.solutions:
        return share, recovery
    read = share.scaled(1 / recovery.readings[0].scale)
    (again,) = recover(subject, [read], replace(options, scale="known"))
    return (share, recovery) if again.feature is None else (read, again)


def _input(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    composition: CompositionFinding,
    options: Options,
) -> InputFinding:
    """The input, unless nobody asks for it or there is no single one."""
    if not options.inputs:
        return InputFinding(Method.NONE, "inputs were not asked for", asked=False)
    if mixes(recovery, composition):
        return InputFinding(Method.NONE, "the update mixes several samples or steps")
    if composition.signs:
        return InputFinding(Method.NONE, "the update is a pattern of signs, not a gradient")
    return recover_input(subject, share, recovery, options.normalisation, options.seconds)


def _composition(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> CompositionFinding:
    """What can be said of a share whose label was not found, as of a batch."""
    if recovery.status is Status.UNIQUE:
        return CompositionFinding()
    said = replace(share, scale=options.scale) if options.scale else share
    declared = options.declared or said.scale is not None
    parameters = dict(subject.model.named_parameters())
    try:
        found = read_composition(subject.batch_reader, said, options.samples, declared, parameters)
    except Exception as error:  # reading runs the model on noise, and its code may raise anything
        return CompositionFinding(message=f"not attacked: {in_a_line(error)}")
    if recovery.noise and not found.present and found.attacked:  # reading gives up on noise
        return replace(found, message=f"not attacked: {found.message}", attacked=False)
    return found
