"""This module turns shares into reports: labels all at once, then the input behind each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from softleak.auditing.audit_options import Options
from softleak.auditing.batch_inputs import batch_input
from softleak.auditing.class_parts import parts_in_words
from softleak.auditing.composition import CompositionFinding, mixes, read_composition
from softleak.auditing.diagnosis import check_not_weights, notes
from softleak.auditing.findings import FeatureFinding, InputFinding, LabelFinding, Method
from softleak.auditing.input_attack import recover_input
from softleak.auditing.reports import AuditReport
from softleak.auditing.rereading import reread
from softleak.auditing.sample_findings import NO_SAMPLES, SamplesFinding, read_samples
from softleak.auditing.scalar_view import ScalarView
from softleak.auditing.trained_inputs import trained_input
from softleak.auditing.truth import Truth
from softleak.errors import ShareError, in_a_line
from softleak.factors import head_gradients
from softleak.input_spec import InputSpec, Layout
from softleak.labels.local.recipe import as_gradient
from softleak.labels.recover import recover
from softleak.local_training import LocalTraining
from softleak.naming import aligned
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject

LARGEST_ENTRY = 1e9  # of a gradient: features of a network are not larger
Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class NamedShare:
    """This holds a share, where it came from, and the truth behind it if somebody has it."""

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
    input_shape: Layout | None = None,
    name: str = "share",
) -> AuditReport:
    """Return everything one share gives away, by the strongest method that applies.

    Args:
        model: the classifier, in the mode the client used.
        share: what the client sent.
        options: what is asked for, and what is known beforehand.
        truth: the true label and input, if you have them. They are read after the answer, only to
            score it.
        input_shape: the shape of one input, if the share does not say.
        name: what the report calls the share.
    """
    options = options or Options()
    subject = Subject.of(model, input_shape or share.input_shape)
    fitted = None if truth is None else truth.fitted(subject.head.classes, subject.input_shape)
    ready = NamedShare(name, prepared(subject, share, options), fitted)
    return next(audit_shares(subject, [ready], options))


def prepared(subject: Subject, share: GradientShare, options: Options) -> GradientShare:
    """Return the share under the model's names, checked.

    Raises ``ShareError`` with what is wrong.
    """
    _check_input_shape(subject, share)
    parameters = subject.parameters
    share = aligned(share, subject.model)
    share.check_shapes(parameters)
    head_gradients(subject.head, [share])
    # Two checkpoints have running statistics as well, whose difference is no gradient.
    share = share.without(*(share.keys() - parameters.keys()))
    share.check_finite()
    huge = [name for name in share if share.largest(name) > LARGEST_ENTRY]
    if huge:
        raise ShareError(
            f"the gradient {min(huge)!r} has entries above {LARGEST_ENTRY:.0e}, as no "
            "cross-entropy gives; the file is damaged, or not of gradients"
        )
    check_not_weights(subject, share)
    noise = options.knowledge.noise
    return share.expecting(noise) if noise else share


def _check_input_shape(subject: Subject, share: GradientShare) -> None:
    """Raise ``ShareError`` for another shape: evidence and chain hold for one shape alone."""
    expected, came = subject.input_shape, share.input_shape
    if isinstance(expected, InputSpec) and expected.alike(came):
        return  # what holds for token sequences was found on several lengths
    if expected is not None and came is not None and came != expected:
        given = came if isinstance(came, tuple) else ()
        raise ShareError(
            f"the share is of an input of shape {came}, the model was made ready for {expected}; "
            f"give --input-shape {','.join(map(str, given))} (input_shape in Python) and audit "
            "shares of other shapes apart"
        )


def audit_shares(
    subject: Subject,
    shares: Sequence[NamedShare],
    options: Options,
    progress: Progress = lambda _: None,
) -> Iterator[AuditReport]:
    """Yield a report of each share, in their order. The shares must have been ``prepared``."""
    start = time.perf_counter()
    recoveries = recover(subject, [named.share for named in shares], options.knowledge)
    each = (time.perf_counter() - start) / max(len(shares), 1)
    for named, first in zip(shares, recoveries, strict=True):
        progress(named.name)
        trained = named.share.made_by is not None  # then other clients were tried already
        recovery = first if trained else _reread(subject, named.share, first, options)
        gradient = as_gradient(subject, named.share)
        composition = _composition(subject, gradient, recovery, _countable(named.share, options))
        composition = _with_parts(subject, named.share, composition, options)
        yield _report(subject, named, gradient, LabelFinding(recovery, each), composition, options)


def _countable(share: GradientShare, options: Options) -> Options:
    """Return the options without a number of samples, where several steps leave nothing to count.

    Classes that are present are proved for any steps of SGD; counts need the scale of one.
    """
    training = share.made_by
    if training is None or (training.single_steps == 1 and training.epochs is None):
        return options
    return replace(options, knowledge=replace(options.knowledge, samples=None))


def is_one_step(training: LocalTraining | None, recovery: Recovery) -> bool:
    """Return whether an update is one step: an epoch of batches is, of one sample alone."""
    if training is None:
        return True
    batches = training.epochs is not None and training.batch_size is not None
    alone = recovery.status is Status.UNIQUE or not batches
    return training.single_steps == 1 and alone


def _report(
    subject: Subject,
    named: NamedShare,
    gradient: GradientShare,
    label: LabelFinding,
    composition: CompositionFinding,
    options: Options,
) -> AuditReport:
    """Return the report of one share. The truth is read here, after the answer."""
    recovery, truth, training = label.recovery, named.truth, named.share.made_by
    one_step = is_one_step(training, recovery)
    share, followed = _followed(subject, gradient, recovery, options)
    samples = NO_SAMPLES
    if one_step:
        samples = _samples(subject, gradient, recovery, composition, options)
        found = _input(subject, share, followed, composition, samples, options)
        samples = samples.with_inputs(found)
    else:
        found = trained_input(subject, named.share, options)
    return AuditReport(
        named.name,
        label,
        FeatureFinding.of(followed),
        found,
        options.knowledge.of(named.share),
        ScalarView.of(subject.head, gradient, recovery) if options.views and one_step else None,
        None if truth is None else truth.score(recovery, found, options.normalisation),
        named.fingerprint,
        composition,
        notes(subject, gradient, recovery),
        options.tokens,
        samples,
    )


def _samples(
    subject: Subject,
    gradient: GradientShare,
    recovery: Recovery,
    composition: CompositionFinding,
    options: Options,
) -> SamplesFinding:
    """Return every sample of an update of several."""
    if not mixes(recovery, composition):
        return NO_SAMPLES
    return read_samples(subject, gradient, composition, options)


def _reread(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> Recovery:
    """Return what another scale makes of a share that no label explains.

    If somebody vouched for its scale, the recovery stays as it is.
    """
    knowledge = options.knowledge.of(share)
    if knowledge.scale is not None:
        return recovery
    unknown = replace(knowledge, scale="unknown")
    return reread(
        recovery, share, lambda one: recover(subject, [one], unknown)[0], not knowledge.is_gradient
    )


def _followed(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> tuple[GradientShare, Recovery]:
    """Return the share and its recovery, read at another scale or sign if only that makes sense.

    The label stays what it was called; what depends on it is attacked under that reading.
    """
    if not recovery.readings or recovery.solutions:
        return share, recovery
    read = share.scaled(1 / recovery.readings[0].scale)
    (again,) = recover(subject, [read], replace(options.knowledge, scale="known"))
    return (share, recovery) if again.feature is None else (read, again)


def _input(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    composition: CompositionFinding,
    samples: SamplesFinding,
    options: Options,
) -> InputFinding:
    """Return the input, or those of several samples, unless nobody asks for it."""
    if not options.inputs:
        return InputFinding(Method.NONE, "inputs were not asked for", asked=False)
    text = isinstance(subject.input_shape, InputSpec)  # several texts still show their words
    if mixes(recovery, composition) and not text:
        return batch_input(subject, share, samples, options)
    if composition.signs:
        return InputFinding(Method.NONE, "the update is a pattern of signs, not a gradient")
    return recover_input(subject, share, recovery, options)


def _with_parts(
    subject: Subject, share: GradientShare, found: CompositionFinding, options: Options
) -> CompositionFinding:
    """Return the finding with the parts of the classes, if local training can be simulated."""
    if not found.attacked:
        return found
    words = parts_in_words(subject, share, options.knowledge.samples, options.stand_ins)
    return replace(found, message=f"{found.message}; {words}") if words else found


def _composition(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> CompositionFinding:
    """Return what can be said of a share as a batch, if no label of one sample was found."""
    if recovery.status is Status.UNIQUE:
        return CompositionFinding()
    try:
        found = read_composition(subject, share, options.knowledge.of(share))
    except Exception as error:  # reading runs the model on noise, and its code may raise anything
        return CompositionFinding(message=f"not attacked: {in_a_line(error)}")
    if recovery.noise and not found.present and found.attacked:  # reading gives up on noise
        return replace(found, message=f"not attacked: {found.message}", attacked=False)
    return found
