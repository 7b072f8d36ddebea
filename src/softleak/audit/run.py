"""Turn shares into reports: labels all at once, then the input behind each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from softleak.audit.composition import CompositionFinding, mixes, parts_in_words, read_composition
from softleak.audit.findings import FeatureFinding, InputFinding, LabelFinding, Method
from softleak.audit.input_attacks import recover_input
from softleak.audit.options import Options
from softleak.audit.report import AuditReport, ScalarView
from softleak.audit.samples import NO_SAMPLES, SamplesFinding, read_samples
from softleak.audit.several_inputs import batch_input, trained_input
from softleak.audit.truth import Truth
from softleak.core.errors import ShareError, in_a_line
from softleak.core.factors import head_gradients
from softleak.core.input_spec import InputSpec, Layout
from softleak.core.results import Reading, Recovery, Status, Why, because
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.core.update import as_gradient
from softleak.io.weights import aligned
from softleak.labels.otherwise import is_sign_pattern
from softleak.labels.recover import recover

Recover = Callable[[GradientShare], Recovery]


def reread(recovery: Recovery, share: GradientShare, recover: Recover, signs: bool) -> Recovery:
    """Return the recovery, with a reading at another scale if exactly one exists.

    ``recover`` takes the scale for unknown. ``signs`` says that the sign is unknown as well: a
    difference of weights has the other one.
    """
    if recovery.status is not Status.NO_SOLUTION:
        return recovery
    tried = [(1.0, recover(share)), *([(-1.0, recover(share.scaled(-1)))] if signs else [])]
    unique = [(sign, one) for sign, one in tried if one.status is Status.UNIQUE]
    if len(unique) != 1:
        return recovery
    ((sign, found),) = unique
    if found.label is None:
        return recovery
    what = "another scale" if sign > 0 else "another scale and sign (a difference of weights)"
    message = (
        f"taken as the gradient itself, the share means no label at all; at {what} it means one "
        f"label, of class {int(found.label.argmax())}. If you know which, say so by the kind of "
        "the share"
    )
    reading = Reading(found.label, sign * found.scale, found.family)
    return replace(
        recovery, status=Status.AMBIGUOUS, reason=message, label=found.label, readings=(reading,)
    )


# What tells weights and weight decay from gradients.
DIAGNOSIS_NEAR_WEIGHTS = 0.5
DIAGNOSIS_PARALLEL = 0.99  # the cosine of the angle to the weights
DIAGNOSIS_ROUNDINGS = 1e3  # a sum of so many roundings is not due to rounding


SETTLED = (Status.UNIQUE, Status.ZERO_GRADIENT)


def check_not_weights(subject: Subject, share: GradientShare) -> None:
    """Raise ``ShareError`` if what was given as a gradient is the model's own weights, or nearly.

    Weights after a step are near those before it; a gradient is not.
    """
    sizes = {n: size for n, size in subject.once(_parameter_sizes).items() if n in share}
    size, distance = math.hypot(*sizes.values()), 0.0
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        weight = subject.parameters[name].detach()
        off = float((share[name].to(weight.device).double() - weight.double()).norm())
        distance = math.hypot(distance, off)
        if distance >= DIAGNOSIS_NEAR_WEIGHTS * size:
            return  # mostly after the largest layer
    if size > 0:
        raise ShareError(
            "the share equals the model's own weights "
            f"{'exactly' if not distance else f'to within {distance / size:.2g} of their size'}: "
            "the file holds weights, not gradients; say --kind weights to audit the step from "
            "--weights to it"
        )


def _parameter_sizes(subject: Subject) -> dict[str, float]:
    """Return the length of every parameter."""
    return {n: float(p.detach().double().norm()) for n, p in subject.parameters.items()}


def notes(subject: Subject, share: GradientShare, recovery: Recovery) -> tuple[str, ...]:
    """Return notes that fit the share better than the verdict does, if no label was found."""
    if recovery.status in SETTLED:
        return ()
    if is_sign_pattern(share[subject.head.weight_name]):
        return (
            "every entry of the head's gradient has the same size: the share is a sign pattern, as "
            "one step of Adam or signSGD leaves it, and not a gradient",
        )
    found = (_dropout(subject, recovery), _decay(subject, share))
    return tuple(note for note in found if note)


def _dropout(subject: Subject, recovery: Recovery) -> str:
    """Return a note if layers disagree and the model has dropout that the audit left out."""
    dropping = [
        name for name, module in subject.model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p and not module.training
    ]  # fmt: skip
    against = any(piece.refutes for piece in recovery.evidence)
    unexplained = recovery.status in (Status.NO_SOLUTION, Status.GUESS, Status.PROBABLE)
    if not dropping or not (against or unexplained):
        return ""
    return (
        f"the model has dropout ({', '.join(dropping[:3])}) and was audited in eval mode: layers "
        "contradict each other as they do if the client dropped entries; try --train-mode"
    )


def _decay(subject: Subject, share: GradientShare) -> str:
    """Return a note on weight decay, if the share shows it.

    Sums over classes are zero in a gradient of the cross-entropy; weight decay adds λ W to it.
    """
    head = subject.head
    G, W = share[head.weight_name].double().cpu(), head.W.double().cpu()
    sums, own = G.sum(0), W.sum(0)
    rounding = share.resolution(head.weight_name, head.dtype) * float(G.abs().sum(0).max())
    if float(sums.norm()) <= DIAGNOSIS_ROUNDINGS * (rounding + share.noise(head.weight_name)):
        return ""
    if not float(own.norm()) or float(torch.cosine_similarity(sums, own, 0)) < DIAGNOSIS_PARALLEL:
        return ""
    factor = float(sums @ own / own.square().sum())
    return (
        "what no cross-entropy explains of the head's gradient is parallel to the head's weights, "
        f"as weight decay of {factor:.2g} leaves it"
    )


LARGEST_ENTRY = 1e9  # of a gradient: features of a network are not larger
Progress = Callable[[str], None]


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
        return InputFinding(Method.NONE, because(Why.NOT_ASKED), asked=False)
    text = isinstance(subject.input_shape, InputSpec)  # several texts still show their words
    if mixes(recovery, composition) and not text:
        return batch_input(subject, share, samples, options)
    if composition.signs:
        return InputFinding(Method.NONE, because(Why.ONLY_SIGNS))
    return recover_input(subject, share, recovery, options)


def _with_parts(
    subject: Subject, share: GradientShare, found: CompositionFinding, options: Options
) -> CompositionFinding:
    """Return the finding with the parts of the classes, if local training can be simulated."""
    if not found.attacked:
        return found
    words = parts_in_words(subject, share, options.knowledge.samples, options.stand_ins)
    return found.because(words)


def _composition(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> CompositionFinding:
    """Return what can be said of a share as a batch, if no label of one sample was found."""
    if recovery.status is Status.UNIQUE:
        return CompositionFinding()
    try:
        found = read_composition(subject, share, options.knowledge.of(share))
    except Exception as error:  # reading runs the model on noise, and its code may raise anything
        return CompositionFinding(reasons=(in_a_line(error),))
    if recovery.noise and not found.present and found.attacked:  # reading gives up on noise
        return replace(found, attacked=False)
    return found
