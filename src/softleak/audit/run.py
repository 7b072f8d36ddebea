"""Turn shares into reports: labels all at once, then the input behind each.

Update files, one or a folder of them, are each read and hashed once.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softleak import io as tensor_files
from softleak.audit.input_attacks import (
    batch_input,
    input_of_any_loss,
    recover_input,
    trained_input,
)
from softleak.audit.metrics import Truth
from softleak.audit.options import Options
from softleak.audit.report import (
    LEAK_FEATURE_ERROR,
    NO_SAMPLES,
    UNREAD,
    AuditReport,
    CompositionFinding,
    FeatureFinding,
    InputFinding,
    LabelFinding,
    Method,
    Refusal,
    SamplesFinding,
    mixes,
)
from softleak.audit.several import (
    parts_of_classes,
    read_composition,
    read_samples,
)
from softleak.core.client import SgdSteps, as_gradient
from softleak.core.errors import FileError, ShareError, SoftleakError, in_a_line
from softleak.core.factors import factor, head_gradients
from softleak.core.families import Family, SmoothedMixed
from softleak.core.fit import Bearing, Explanation, Hypothesis, Topic
from softleak.core.head import Head, with_precision
from softleak.core.input_spec import InputSpec, Layout, entries
from softleak.core.loss import CrossEntropy, Loss, stated_loss
from softleak.core.results import Reading, Recovery, Status, Why, because
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.core.vocabulary import Precision, UpdateKind
from softleak.inversion.quotient import divided_feature, hides_several
from softleak.io.adapters import with_adapters
from softleak.io.formats import Content, fingerprint
from softleak.io.untrusted import shown
from softleak.io.weights import aligned, copy_weights, match, own_weights
from softleak.labels.curve import LARGEST, PseudoLabels, spread
from softleak.labels.fit import noise_is_absent
from softleak.labels.recover import recover

Progress = Callable[[str], None]
Weights = Mapping[str, Tensor] | str | os.PathLike[str]  # a ``state_dict``, or a file of one
LARGEST_ENTRY = 1e9  # of a gradient: features of a network are not larger
DIAGNOSIS_NEAR_WEIGHTS = 0.5  # of the weights' size: a gradient is farther from them
# What of a fit explains a verdict better than its reason does.
NOTED = frozenset({Explanation.SIGNS, Explanation.DROPOUT, Explanation.DECAY})


@dataclass(frozen=True, eq=False)
class NamedShare:
    """A share, where it came from, and the truth behind it if somebody has it."""

    name: str
    share: GradientShare
    truth: Truth | None = None
    fingerprint: str = ""
    remarks: tuple[str, ...] = ()  # on what of it was not read


def audit(
    model: nn.Module,
    share: GradientShare | None = None,
    *,
    before: Weights | None = None,
    after: Weights | None = None,
    lr: float | None = None,
    options: Options | None = None,
    truth: Truth | None = None,
    input_shape: Layout | None = None,
    name: str = "share",
    loss: Loss | str | None = None,
) -> AuditReport:
    """Return everything one share gives away, by the strongest method that applies.

    Args:
        model: the classifier, in the mode the client used.
        share: what the client sent, as a gradient.
        before: instead of a share, the weights before one step of SGD: a ``state_dict`` or a file.
            Without it the step began at the weights of ``model``.
        after: the weights after that step.
        lr: the learning rate of that step; without it the scale of the update is unknown.
        options: what is asked for, and what is known beforehand.
        truth: the true label and input, if you have them. They are read after the answer, only to
            score it.
        input_shape: the shape of one input, if the share does not say.
        name: what the report calls the share.
        loss: what the client minimised: "ce", "bce", "mse" or a ``Loss``, beside the options.
    """
    sent: Mapping[str, Tensor] | None = share
    if share is None and after is not None:
        sent = _content(after).tensors
        model, share = _step_between(model, before, Content(sent), lr)
        asked = Options() if options is None else options
        options = replace(asked, knowledge=replace(asked.knowledge, is_gradient=True))
    elif share is None or (before, after, lr) != (None, None, None):
        raise ShareError(
            "an audit needs one update: give a share, or the weights after a step (after=, with "
            "before= and lr= if they are known)"
        )
    options = options or Options()
    if loss is not None:
        known = replace(options.knowledge, loss=stated_loss(loss))
        options = replace(options, knowledge=known)
    subject = Subject.of(model, input_shape or share.input_shape)
    fitted = None if truth is None else truth.fitted(subject.head.classes, subject.input_shape)
    remarks = unread(subject, sent or share)
    ready = NamedShare(name, prepared(subject, share, options), fitted, remarks=remarks)
    return next(audit_shares(subject, [ready], options))


def _step_between(
    model: nn.Module, before: Weights | None, after: Content, lr: float | None
) -> tuple[nn.Module, GradientShare]:
    """Return the model at the weights before a step, and the update that the step sent."""
    old = _content(model.state_dict() if before is None else before)
    if before is not None:
        model = copy_weights(with_adapters(deepcopy(model), before), old.tensors, "before")
    return model, UpdateReading(lr=lr).between(old, after, model)


def _content(weights: Weights) -> Content:
    """Return the tensors of a ``state_dict``, or those of a file."""
    if isinstance(weights, Mapping):
        return Content(dict(weights))
    return tensor_files.load(Path(weights))


def prepared(subject: Subject, share: GradientShare, options: Options) -> GradientShare:
    """Return the share under the model's names, or raise ``ShareError`` with what is wrong."""
    _check_input_shape(subject, share)
    parameters = subject.parameters
    share = aligned(share, subject.model)
    share.check_shapes(parameters)
    if not subject.head.each_token:  # whose table may be its head
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
    _check_not_weights(subject, share)
    share = with_precision(_moved(subject, share), subject.head)
    noise = options.knowledge.noise
    return share.expecting(noise) if noise and not noise_is_absent(share, noise) else share


MOST_UNREAD = 5  # tensors that fit nothing which a remark names


def unread(subject: Subject, held: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return which tensors of an update fit no part of the model, so that nothing reads them."""
    own = subject.model.state_dict()
    names, remarks = match(held, subject.model)
    strange = [shown(name) for name in held if name in names and names[name] not in own]
    if strange:
        more = len(strange) - MOST_UNREAD
        listed = ", ".join(strange[:MOST_UNREAD]) + (f" and {more} more" if more > 0 else "")
        count = "1 tensor fits" if len(strange) == 1 else f"{len(strange)} tensors fit"
        remarks = (*remarks, f"{count} no parameter of the model; not read: {listed}")
    return remarks


def _moved(subject: Subject, share: GradientShare) -> GradientShare:
    """Return the share without layers of zeros: frozen ones say nothing, as they were not sent."""
    head = {subject.head.weight_name, subject.head.bias_name}
    return share.without(*(n for n in share if n not in head and share.largest(n) == 0))


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


def _check_not_weights(subject: Subject, share: GradientShare) -> None:
    """Raise ``ShareError`` if what was given as a gradient is nearly the model's own weights."""
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
    for named, recovery in zip(shares, recoveries, strict=True):
        progress(named.name)
        if named.share.made_by is None:  # else other clients were tried already
            recovery = _reread(subject, named.share, recovery, options)
        yield _report(subject, named, LabelFinding(recovery, each), options)


def _report(
    subject: Subject, named: NamedShare, label: LabelFinding, options: Options
) -> AuditReport:
    """Return the report of one share. The truth is read here, after the answer."""
    recovery, truth = label.recovery, named.truth
    gradient = as_gradient(subject, named.share)
    labelled = not subject.head.each_token  # the labels of a language model are its text
    composition = (
        _composition(subject, named.share, gradient, recovery, options) if labelled else UNREAD
    )
    one_step = is_one_step(named.share.made_by, recovery)
    share, followed = _followed(subject, gradient, recovery, options)
    samples = NO_SAMPLES
    if one_step:
        if labelled and mixes(recovery, composition):
            samples = read_samples(subject, gradient, composition, options)
            composition = composition.with_labels(samples.proved)
        found = _input(subject, share, followed, composition, samples, options)
        if found.batch:  # what a search found of all of them
            samples = replace(samples, pictures=found.batch, searched=found)
    else:
        found = trained_input(subject, named.share, options)
    own, feature = _with_factors(recovery, found), FeatureFinding.of(followed)
    mean = False
    if one_step and labelled and not mixes(recovery, composition):
        if not feature.proved:
            own, feature = _with_feature(subject, gradient, own, feature)
        whole = found.leaked and found.method.exact and found.text is None
        mean = (feature.proved or whole) and options.knowledge.samples != 1
        mean = mean and _may_be_mean(subject, gradient, followed, own)
    return AuditReport(
        named.name,
        replace(label, recovery=own),
        feature,
        found,
        options.knowledge.of(named.share),
        scalar_view(subject.head, gradient, recovery) if options.views and one_step else None,
        None if truth is None else truth.score(recovery, found, options.normalisation),
        named.fingerprint,
        composition,
        tuple(h.sentence for h in recovery.fit.hypotheses if h.explanation in NOTED),
        options.tokens,
        samples,
        mean,
        named.remarks,
    )


def _with_feature(
    subject: Subject, share: GradientShare, recovery: Recovery, feature: FeatureFinding
) -> tuple[Recovery, FeatureFinding]:
    """Return the feature that one division at the head gives, whatever the loss and the weights."""
    found = divided_feature(subject, share.expecting(recovery.noise), recovery)
    if found is None or not found[1] <= LEAK_FEATURE_ERROR:
        return recovery, feature
    known = replace(recovery, feature=found[0], feature_error=found[1])
    return known, FeatureFinding(found[0].numel(), found[1], proved=True, up_to_length=True)


def _may_be_mean(subject: Subject, share: GradientShare, *recoveries: Recovery) -> bool:
    """Return whether what was found of one sample may be the mean of several of one class."""
    feature = next((one.feature for one in recoveries if one.feature is not None), None)
    return feature is None or hides_several(subject, share, feature)


POINTS = 600  # an even number, so that zero is none of them
NEAR = 10.0 ** -torch.arange(1.0, 7.0, 0.5, dtype=torch.double)  # of t: closer and closer to a mark
REACH = LARGEST ** (1 / 3)
SHOWN: Family = SmoothedMixed(2)  # the loss drawn is the distance from these


def scalar_view(head: Head, share: GradientShare, recovery: Recovery) -> dict[str, Any] | None:
    """Return ``ŷ(t) = softmax(a/t + b) − t u`` with its loss, for the page of one share.

    ``loss`` (S,) is on cubes of evenly spaced numbers up to ``reach``; ``near`` (K, 2) are scalars
    and losses around the certified solutions. None where no softmax of a single sample is behind
    it.
    """
    broken = {one.topic for one in recovery.fit.contradicted} - {Topic.NOISE, Topic.SCALE}
    none = recovery.status in (Status.ZERO_GRADIENT, Status.NOT_SINGLE, Status.OWN_LABEL)
    if none or broken or not isinstance(recovery.loss, CrossEntropy):
        return None
    unscaled = share if recovery.scale == 1.0 else share.scaled(1 / recovery.scale)
    pseudo = PseudoLabels.of(head, factor(head, [unscaled]))
    even = torch.arange(POINTS, dtype=torch.double).add(0.5).mul(2 * REACH / POINTS).sub(REACH)
    sides = torch.cat([1 - NEAR, torch.ones(1, dtype=torch.double), 1 + NEAR])
    around = [found.scalar * sides for found in recovery.solutions]
    close = [torch.cat(around).sort().values] if around else []
    t = torch.cat([even**3, *close]).to(head.W.device)
    loss = spread(pseudo, SHOWN, t[None])[0]
    near = torch.stack([t, loss], 1)[POINTS:]
    numbers = {"a": pseudo.a[0], "b": pseudo.b, "u": pseudo.u[0]}
    return {
        **{name: entries.tolist() for name, entries in numbers.items()},
        "reach": REACH,
        "loss": loss[:POINTS].tolist(),
        "near": near.tolist(),
    }


def _with_factors(recovery: Recovery, found: InputFinding) -> Recovery:
    """Return the label whose fit says that tensors have factors of their own, if an input does."""
    if found.factor == 1.0:
        return recovery
    bearing, why = Bearing.CONTRADICTED, Explanation.TENSOR_FACTORS
    said = Hypothesis(Topic.SCALE, bearing, why, found.factor)
    return replace(recovery, fit=recovery.fit.saying(said))


def is_one_step(training: LocalTraining | None, recovery: Recovery) -> bool:
    """Return whether an update is one step: an epoch of batches is, of one sample alone."""
    if training is None:
        return True
    batches = training.epochs is not None and training.batch_size is not None
    alone = recovery.status is Status.UNIQUE or not batches
    return training.single_steps == 1 and alone


def _reread(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> Recovery:
    """Return the recovery, with a reading at another scale if exactly one exists.

    Where nobody stated the scale of a share that no label explains, it is taken for unknown; and so
    is its sign, if it may be a difference of weights.
    """
    knowledge = options.knowledge.of(share)
    if knowledge.scale is not None or recovery.status is not Status.NO_SOLUTION:
        return recovery
    unknown = replace(knowledge, scale="unknown")
    tried = [(1.0, share), *([] if knowledge.is_gradient else [(-1.0, share.scaled(-1))])]
    read = [(sign, recover(subject, [one], unknown)[0]) for sign, one in tried]
    unique = [(sign, one) for sign, one in read if one.status is Status.UNIQUE]
    if len(unique) != 1:
        return recovery
    ((sign, found),) = unique
    if found.label is None:
        return recovery
    why = because(Why.ANOTHER_READING, sign=sign, class_index=found.class_index)
    reading = Reading(found.label, sign * found.scale, found.family)
    return replace(
        recovery, status=Status.AMBIGUOUS, reason=why, label=found.label, readings=(reading,)
    )


def _followed(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> tuple[GradientShare, Recovery]:
    """Return the share and its recovery, read at another scale or sign if only that makes sense."""
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
    if isinstance(subject.input_shape, InputSpec):  # several texts, and signs, show their words
        return recover_input(subject, share, recovery, options)
    if composition.signs:
        return InputFinding(Method.NONE, because(Why.ONLY_SIGNS))
    several = mixes(recovery, composition)
    found = (
        batch_input(subject, share, samples, options) if several
        else recover_input(subject, share, recovery, options)
    )  # fmt: skip
    if found.leaked or samples.inputs or recovery.fit[Topic.LOSS].bearing is Bearing.HOLDS:
        return found
    other = input_of_any_loss(subject, share, options)
    if other is None or not other.leaked:
        return found
    return replace(other, attempts={**found.attempts, **other.attempts})


def _composition(
    subject: Subject,
    share: GradientShare,
    gradient: GradientShare,
    recovery: Recovery,
    options: Options,
) -> CompositionFinding:
    """Return what can be said of a share as a batch, if no label of one sample was found.

    Classes that are present are proved for any steps of SGD; counts need the scale of one. Parts of
    the classes are estimated where local training can be simulated.
    """
    if recovery.status is Status.UNIQUE or recovery.targets:
        return UNREAD
    training, samples = share.made_by, options.knowledge.samples
    one = training is None or (training.single_steps == 1 and training.epochs is None)
    knowledge = replace(options.knowledge, samples=samples if one else None).of(gradient)
    if one and training is not None and SgdSteps.of(training) is not None:
        knowledge = replace(knowledge, scale="known")  # rate, momentum and decay are all stated
    fit = recovery.fit
    if training is not None and training.optimiser != "sgd":
        fit = fit.saying(Hypothesis(Topic.STEPS, Bearing.OPEN, Explanation.ADAPTIVE))
    try:
        found = read_composition(subject, gradient, knowledge, fit)
    except Exception as error:  # reading runs the model on noise, and its code may raise anything
        return CompositionFinding(reasons=(in_a_line(error),))
    if not found.attacked:
        return found
    if recovery.noise and not found.raised:  # reading gives up on noise
        return replace(found, attacked=False)
    return found.because(parts_of_classes(subject, share, samples, options.stand_ins))


@dataclass(frozen=True)
class UpdateReading:
    """How update files are to be read."""

    kind: UpdateKind | None = None  # what they hold; None: gradients of any sign and scale
    lr: float | None = None  # of the step; without it a difference of weights has unknown scale
    precision: Precision | None = None  # the coarsest number format that the client computed in
    client: LocalTraining | None = None  # the training behind the difference, in place of ``lr``

    def share(self, held: Content, model: nn.Module) -> GradientShare:
        """Return the update that a file holds, for a model with the weights before the step."""
        if self.kind in (None, UpdateKind.GRADIENT):
            share = GradientShare.of_file(held)
            stated = share.scale or ("known" if self.kind else None)
            return self._computed(replace(share, scale=stated))
        if self.kind is UpdateKind.WEIGHTS:
            share = self.between(Content(model.state_dict()), held, model)
            return replace(share, input_shape=held.input_shape)
        tensors, start = own_weights(held.tensors, model), model.state_dict()
        if self.client is None:
            share = GradientShare.from_delta(tensors, lr=self.lr)
        else:  # the weights before tell how a difference was rounded
            ends = {n: start[n].double() + d for n, d in tensors.items() if n in start}
            share = GradientShare.from_update(start, ends, client=self.client)
        return self._computed(replace(share, input_shape=held.input_shape))

    def between(self, before: Content, after: Content, model: nn.Module) -> GradientShare:
        """Return the update between two checkpoints of a model; raises if they are equal."""
        old, new = (own_weights(held.tensors, model) for held in (before, after))
        share = GradientShare.from_update(old, new, lr=self.lr, client=self.client)
        if not any(share.largest(name) != 0 for name in share):
            raise ShareError(
                "expected weights after a step, got weights that equal those before it, so there "
                "is no update to audit; check which file is which"
            )
        return self._computed(share)

    def _computed(self, share: GradientShare) -> GradientShare:
        """Return the share with the number format that the client computed in, if it is stated."""
        return share if self.precision is None else replace(share, precision=self.precision)


# What a folder of strangers' files may cost.
SHARES_AT_ONCE = 256  # held in memory
BYTES_AT_ONCE = 1 << 29  # of gradients held in memory
LARGEST_RECORDED_INPUT = 1 << 20  # entries of an input that a file may have the model tried on


def share_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder in the order of their names; a sharded file is one."""
    if not os.path.isdir(path) or tensor_files.is_checkpoint_folder(path):  # os takes any name
        return [path]
    found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if not found:
        raise FileError(
            f"the folder {shown(path.name)} holds no files; expected {tensor_files.ENDINGS}"
        )
    return found


@dataclass(frozen=True, eq=False)
class UpdateFiles(UpdateReading):
    """The update files of one audit, and what they are said to hold."""

    paths: Sequence[Path] = ()  # in the order in which they are audited
    truth: Path | None = None  # a file of truth for every update, or a folder with one for each
    _early: dict[Path, Content | SoftleakError] = field(default_factory=dict, repr=False)

    def recorded_shape(self) -> Layout | None:
        """Return the input shape that the first readable file records, if it is a usual one."""
        for path in self.paths:
            try:
                self._early[path] = held = tensor_files.load(path)
            except SoftleakError as error:
                self._early[path] = error
            else:
                shape = held.input_shape
                usual = shape is not None and entries(shape) <= LARGEST_RECORDED_INPUT
                return shape if usual else None
        return None

    def audited(
        self, subject: Subject, options: Options, progress: Progress = lambda _: None
    ) -> Iterator[tuple[NamedShare, AuditReport] | Refusal]:
        """Yield each share with its report, or why a file was refused, a batch at a time."""
        for batch, refused in self._batches(subject, options):
            for refusal in refused:
                progress(refusal.name)
                yield refusal
            yield from zip(batch, audit_shares(subject, batch, options, progress), strict=True)
            options = replace(options, views=False)  # a page of more would be no help

    def _batches(
        self, subject: Subject, options: Options
    ) -> Iterator[tuple[list[NamedShare], list[Refusal]]]:
        batch: list[NamedShare] = []
        refused: list[Refusal] = []
        held, truth = 0, _truths(self.truth, subject)
        for path in self.paths:
            name = shown(path.name)
            try:
                share = self.share(self._content(path), subject.model)
                ready = prepared(subject, share, options)
                remarks = unread(subject, share)
                batch.append(NamedShare(name, ready, truth(path), fingerprint(path), remarks))
                held += sum(g.numel() * g.element_size() for g in ready.values())
            except SoftleakError as error:
                refused.append(Refusal(name, str(error)))
            if len(batch) >= SHARES_AT_ONCE or held >= BYTES_AT_ONCE:
                yield batch, refused
                batch, refused, held = [], [], 0
        yield batch, refused

    def _content(self, path: Path) -> Content:
        held = self._early.pop(path, None) or tensor_files.load(path)
        if isinstance(held, SoftleakError):
            raise held
        return held


def _truths(path: Path | None, subject: Subject) -> Callable[[Path], Truth | None]:
    """Return a function that finds the truth of an update file, fitted to the model."""

    def fitted(file: Path) -> Truth:
        return Truth.load(file).fitted(subject.head.classes, subject.input_shape)

    if path is None:
        return lambda _: None
    if not path.is_dir():
        once = cache(fitted)
        return lambda _: once(path)
    by_name = {file.stem: file for file in sorted(path.iterdir())}
    return lambda share: fitted(by_name[share.stem]) if share.stem in by_name else None
