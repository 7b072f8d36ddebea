"""Clients' updates and the audit of a round: all labels in one pass, and inputs of the first few.

An update is converted once, where it enters: from two states to a share.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from softleak.audit.findings import InputFinding
from softleak.audit.input_attacks import recover_input
from softleak.audit.leaks import Leak
from softleak.audit.options import Options
from softleak.audit.report import AuditReport
from softleak.audit.run import NamedShare, audit_shares, prepared
from softleak.audit.several import counted, parts_of_classes, read_samples, trained_input
from softleak.core.errors import ModelError, ShareError, SoftleakError
from softleak.core.head import Head
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.results import Why, because
from softleak.core.share import GradientShare, LocalTraining, Scale
from softleak.core.subject import Subject
from softleak.core.vocabulary import State
from softleak.io.weights import own_names
from softleak.labels.composition import Balance
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.local.proportions import StandIns
from softleak.present.words import composition_words, headline

Weights = Mapping[str, Tensor]  # weights and buffers by name


def under_own_names(held: Weights, model: nn.Module) -> dict[str, Tensor]:
    """Return arrays under the model's names, which lists of arrays do not carry."""
    names = own_names(held, model)
    return {names[name]: tensor for name, tensor in held.items()}


def step_between(before: Weights, after: Weights, lr: float | None) -> GradientShare:
    """Return the gradient behind two states.

    Args:
        before: the state that the client received.
        after: the state that it sent back.
        lr: its learning rate. If it is None, the gradient is multiplied by an unknown factor.

    Raises:
        ShareError: if the states are not those of one model, or hold NaN or infinity.
    """
    if not after:
        raise ShareError("it sent no arrays, so there is nothing to audit")
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ShareError(
            f"it sent {len(after)} arrays under other names than the {len(before)} it received, "
            f"first {odd[0]!r}; is it of this model?"
        )
    _check_alike(before, after)
    share = GradientShare.from_update(before, after, lr=1.0 if lr is None else lr)
    share.check_finite()
    return share


def _check_alike(before: Weights, after: Weights) -> None:
    """Raise ``ShareError`` unless all arrays have the same shapes and kinds of numbers."""
    for name, start in before.items():
        came = after[name]
        if came.shape != start.shape:
            raise ShareError(
                f"the array {name!r} should have shape {tuple(start.shape)}, got "
                f"{tuple(came.shape)}; is it of this model?"
            )
        if came.is_floating_point() != start.is_floating_point():
            raise ShareError(f"the array {name!r} should be {start.dtype}, got {came.dtype}")


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """One client's step as a share, or the reason why there is none.

    Attributes:
        node: the number of the client's node.
        share: the gradient behind the step; None if it could not be read.
        lr: the learning rate by which the share was divided; None if it is unknown.
        samples: the number of samples that the client says it used.
        reason: why there is no share.
        client: how the client trained; None if nothing but its learning rate is known.
        received: the weights and buffers that the client was sent.
    """

    node: int
    share: GradientShare | None = None
    lr: float | None = None
    samples: int | None = None
    reason: str = ""
    client: LocalTraining | None = None
    received: Weights = field(default_factory=dict)

    def sending(self, after: Weights, samples: int | None = None) -> ClientUpdate:
        """Return the update of a client that sends this state, or some arrays of it.

        Raises:
            ShareError: if this is not a step from the state that the client was sent.
        """
        told = {name: self.received[name] for name in after if name in self.received}
        return replace(self, share=step_between(told, after, self.lr), samples=samples)

    def under_sent_names(self, share: GradientShare, model: nn.Module) -> GradientShare:
        """Return a share under the names of the arrays that were sent, not the model's own."""
        names = own_names(self.share or {}, model)
        return share.renamed({own: name for name, own in names.items()})

    def after(self, share: GradientShare, model: nn.Module) -> dict[str, Tensor]:
        """Return the received state after one step of another share.

        Running statistics and counters, which a share does not hold, stay as they were received.
        """
        size, told = 1.0 if self.lr is None else self.lr, self.under_sent_names(share, model)
        moved = {n: t.double() - size * told[n] for n, t in self.received.items() if n in told}
        return {name: moved.get(name, t).to(t.dtype) for name, t in self.received.items()}

    @cached_property
    def trained(self) -> GradientShare | None:
        """The share as local training made it, where that is known; else the gradient."""
        if self.share is None or self.client is None:
            return self.share
        size = 1.0 if self.lr is None else self.lr
        return replace(self.share.scaled(size), made_by=self.client)

    @property
    def samples_of_steps(self) -> int | None:
        """The number of samples if, by what is said, several steps were taken on several samples.

        None for one sample, for one step, and if it was not said.
        """
        if self.samples is None or self.client is None or self.client.epochs is None:
            return None
        batch = self.client.batch_size or self.samples
        return self.samples if batch < self.samples else None

    @property
    def scale_known(self) -> bool:
        """Whether the share is the gradient itself, and not a multiple of it."""
        return self.lr is not None


@dataclass(frozen=True, eq=False)
class Group:
    """The updates of clients that were sent the same state.

    Attributes:
        state: the weights and buffers that they were sent.
        updates: their steps from there.
    """

    state: Weights
    updates: tuple[ClientUpdate, ...]

    def first(self, count: int) -> Group:
        """Return the group with its first few updates that hold a share."""
        return Group(self.state, tuple(u for u in self.updates if u.share is not None)[:count])


@dataclass(frozen=True, eq=False)
class SeveralReader:
    """A reader of updates that hold several samples.

    Attributes:
        subject: the model with the weights that the clients were sent.
        stand_ins: images with their classes on which local training is simulated.
    """

    subject: Subject
    stand_ins: StandIns | None = None

    @cached_property
    def _balance(self) -> Balance | None:
        """The check for a single step; None if this network does not allow it."""
        return Balance.of(self.subject.model, self.subject.head, self.subject.input_shape)

    def read(self, update: ClientUpdate, share: GradientShare, report: AuditReport) -> AuditReport:
        """Return the report with the number of samples per class, or why they were not counted."""
        if not report.several or not report.composition.attacked:
            return report
        reason = self._uncounted(update, share)
        if not reason and update.samples is not None:
            known = Knowledge(scale="known", samples=update.samples, is_gradient=True)
            found = counted(self.subject, share, report.composition, update.samples)
            report = replace(report, composition=found)
            if update.samples >= self.subject.head.classes:  # more than the head's rows tell apart
                return report
            single = read_samples(self.subject, share, found, Options(known))
            return replace(report, samples=single)
        found = report.composition
        sent = update.trained
        parts = "" if sent is None else parts_of_classes(
            self.subject, sent, update.samples, self.stand_ins
        )  # fmt: skip
        uncounted = because(Why.NOT_COUNTED, why=reason)
        return replace(report, composition=found.because(uncounted, parts))

    def _uncounted(self, update: ClientUpdate, share: GradientShare) -> str:
        """Return why samples cannot be counted; empty if they can."""
        if update.samples is None:
            return "the client did not say how many it used"
        if update.lr is None:
            return "the learning rate is not known"
        if self._balance is None:
            return (
                "counting takes one step on all of them, which cannot be checked on this network "
                "(it needs a ReLU before the last layer)"
            )
        checked = self._balance.check(share, self.subject.parameters, update.lr)
        return "" if checked.proved else (
            f"counting takes one step on all of them, and {checked.reason}"
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ClientAudit:
    """What was found in one client's update.

    Attributes:
        node: the number of the client's node.
        report: the report of the audit; None if the update was not audited.
        reason: why there is no report.
    """

    node: int
    report: AuditReport | None = None
    reason: str = ""

    @property
    def leaks(self) -> frozenset[Leak]:
        """The leaks that were proved."""
        return frozenset() if self.report is None else self.report.leaks

    @property
    def unattacked(self) -> frozenset[Leak]:
        """The leaks that were not attacked, so that nothing is known of them."""
        return frozenset(Leak) if self.report is None else self.report.unattacked

    @property
    def single(self) -> bool:
        """Whether nothing shows that the update comes from several samples or steps."""
        return self.report is not None and not self.report.several

    @property
    def words(self) -> str:
        """Return the verdict on the update in one line."""
        if self.report is None:
            return f"not audited: {self.reason}"
        if not self.report.several:
            return headline(self.report)
        said = composition_words(self.report, ())
        unclaimed = "" if self.report.samples.proved else ", so no label is claimed"
        return (
            f"The update holds more than one sample or local step{unclaimed}. "
            f"{headline(self.report)} Class composition: {said}."
        )


@dataclass(frozen=True, eq=False)
class RoundAudit:
    """What was found in the updates of a round.

    Attributes:
        number: the number of the round.
        clients: what was found in each client's update.
        seconds: the time that the audit took.
    """

    number: int
    clients: tuple[ClientAudit, ...]
    seconds: float

    @property
    def audited(self) -> tuple[ClientAudit, ...]:
        """The clients whose update could be read."""
        return tuple(client for client in self.clients if client.report is not None)

    def with_later(self, later: RoundAudit) -> RoundAudit:
        """Return the round with the later findings about some of its clients."""
        again = {client.node: client for client in later.clients}
        clients = tuple(again.get(client.node, client) for client in self.clients)
        return RoundAudit(self.number, clients, self.seconds + later.seconds)

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """Return the number of updates in which a kind of leak is in this state."""
        return sum(c.report.states[leak] is state for c in self.audited if c.report is not None)

    def attacked(self, leak: Leak) -> int:
        """Return the number of updates on which a kind of leak was attacked."""
        return len(self.audited) - self.count(leak, State.NOT_ATTACKED)

    def metrics(self) -> dict[str, float]:
        """Return the round in numbers, for Flower's metrics.

        A leak is given as a fraction of the updates on which it was attacked. If it was attacked on
        none, that number is missing, and only the number of updates not attacked is there.
        """
        tried = {leak: self.attacked(leak) for leak in Leak}
        return {
            **{f"softleak-{k.value}": self.count(k) / n for k, n in tried.items() if n},
            **{
                f"softleak-{k.value}-not-attacked": float(len(self.audited) - n)
                for k, n in tried.items()
            },
            "softleak-audited": float(len(self.audited)),
            "softleak-refused": float(len(self.clients) - len(self.audited)),
            "softleak-several": float(sum(not client.single for client in self.audited)),
            "softleak-seconds": self.seconds,
        }


@dataclass(frozen=True)
class Question:
    """What is asked of every round, and what is known beforehand.

    Attributes:
        inputs: the number of updates per round whose input is attacked as well. That takes seconds
            for each, so it is done later.
        input_shape: the shape of one input; None to guess it from the model.
        normalisation: the normalisation that turns pixels into inputs.
        seconds: the time for matching the gradients of one input, where the model is not a plain
            sequence of layers.
        client: how the clients train locally, such as ``Client(epochs=1, batch_size=32,
            momentum=0.9, lr=UNKNOWN)``. By default what the round's config says; if it says no
            more than ``lr``, one plain step is assumed.
        stand_ins: images with their classes. Where local training is known, it is simulated on
            them, and every update says how large a part of the client's data each class is. That
            takes 60 runs of the client for each state and number of samples.
    """

    inputs: int = 0
    input_shape: tuple[int, ...] | None = None
    normalisation: Normalisation | None = None
    seconds: float = 0.0
    client: LocalTraining | None = None
    stand_ins: StandIns | None = None

    def options(self, scale_known: bool) -> Options:
        """Return the options of an audit, which leave out inputs: those are attacked one by one."""
        scale: Scale = "known" if scale_known else "unknown"
        return Options(
            Knowledge(scale=scale), inputs=False, views=False, seconds=self.seconds,
            normalisation=self.normalisation,
        )  # fmt: skip


class Auditor:
    """An auditor of all rounds of one model.

    The head and the evidence are facts of the architecture, so they are found once.

    Args:
        model: the architecture; the weights are those of each round.
        question: what is asked of every round.
    """

    def __init__(self, model: nn.Module, question: Question) -> None:
        self.question = question
        self._model = copy.deepcopy(model)
        self._first: Subject | None = None

    def audit(self, number: int, groups: Sequence[Group], *, inputs: int = 0) -> RoundAudit:
        """Return what the updates of one round give away."""
        start = time.perf_counter()
        clients = [client for group in groups for client in self._group(group, inputs)]
        return RoundAudit(number, tuple(clients), time.perf_counter() - start)

    def _group(self, group: Group, inputs: int) -> list[ClientAudit]:
        """Audit the updates of clients that were sent the same state."""
        if all(update.share is None for update in group.updates):
            return [ClientAudit(u.node, reason=u.reason) for u in group.updates]
        try:
            return self._clients(self.subject(group.state), group.updates, inputs)
        except SoftleakError as error:  # the model or its state is wrong, not an update
            return [ClientAudit(u.node, reason=u.reason or str(error)) for u in group.updates]

    def subject(self, state: Weights) -> Subject:
        """Return the model with these weights as a subject, or raise ``ModelError``."""
        model = copy.deepcopy(self._model)
        _load(model, state)
        if self._first is None:
            self._first = Subject.of(model, self.question.input_shape)
        first = self._first
        # Evidence is a fact of the architecture; everything else depends on the weights.
        now = Subject(model, Head.of(model, first.head.name), first.input_shape)
        return now.given(evidence_of, first.once(evidence_of))

    def ready(self, subject: Subject, update: ClientUpdate) -> ClientUpdate:
        """Return an update checked, under the names of the model, or raise ``ShareError``."""
        if update.share is None:
            raise ShareError(update.reason)
        options = self.question.options(update.scale_known)
        return replace(update, share=prepared(subject, update.share, options))

    def one(self, subject: Subject, update: ClientUpdate, *, inputs: bool) -> ClientAudit:
        """Return the audit of a single update.

        Args:
            subject: the model with the weights that the client received.
            update: the client's step, which is ``ready``.
            inputs: whether the input is attacked as well.
        """
        return self._alike(subject, [update], self._options(update), int(inputs))[0]

    def _clients(
        self, subject: Subject, updates: Sequence[ClientUpdate], inputs: int
    ) -> list[ClientAudit]:
        """Audit updates of one subject; what is wrong with one of them becomes its reason."""
        ready, found = [], {u.node: ClientAudit(u.node, reason=u.reason) for u in updates}
        for update in updates:
            try:
                if update.share is not None:
                    ready.append(self.ready(subject, update))
            except SoftleakError as error:
                found[update.node] = ClientAudit(update.node, reason=str(error))
        alike: dict[tuple[bool, int | None], list[ClientUpdate]] = defaultdict(list)
        for update in ready:
            alike[update.scale_known, update.samples_of_steps].append(update)
        for some in alike.values():
            for client in self._alike(subject, some, self._options(some[0]), inputs):
                found[client.node] = client
            inputs = max(inputs - len(some), 0)
        return [found[update.node] for update in updates]

    def _options(self, update: ClientUpdate) -> Options:
        """Return the options of an audit of one update, with what is known of its samples."""
        usual = self.question.options(update.scale_known)
        known = replace(usual.knowledge, samples=update.samples_of_steps)
        return replace(usual, knowledge=known)

    def _alike(
        self, subject: Subject, updates: Sequence[ClientUpdate], options: Options, inputs: int
    ) -> list[ClientAudit]:
        """Audit updates of which the same is known, all labels in one pass."""
        pairs = [(u, u.share, u.trained) for u in updates if u.share is not None]
        named = [NamedShare(str(u.node), sent) for u, _, sent in pairs if sent is not None]
        reports = list(audit_shares(subject, named, options)) if named else []
        reader = SeveralReader(subject, self.question.stand_ins)
        clients = []
        for index, ((update, share, sent), report) in enumerate(zip(pairs, reports, strict=True)):
            if index < inputs:
                report = replace(report, input=_input(subject, share, sent, report, options))
            clients.append(ClientAudit(update.node, reader.read(update, share, report)))
        return clients


def _input(
    subject: Subject, share: GradientShare, sent: GradientShare | None, report: AuditReport,
    options: Options,
) -> InputFinding:  # fmt: skip
    """Attack the input behind a gradient, or behind the local steps that were declared."""
    training = None if sent is None else sent.made_by
    if sent is None or training is None or (training.single_steps == 1 and training.epochs is None):
        return recover_input(subject, share, report.label.recovery, options)
    return trained_input(subject, sent, replace(options, inputs=True))


def _load(model: nn.Module, state: Weights) -> None:
    """Copy a state into a model; what was not sent, such as a counter, stays as it was."""
    held, own = under_own_names(state, model), model.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
            if name in held and held[name].shape == tensor.shape:
                tensor.copy_(held[name])
    missing = [n for n, p in model.named_parameters() if n not in held or held[n].shape != p.shape]
    if missing:
        raise ModelError(
            f"the arrays sent to clients are not those of this {type(model).__name__}: "
            f"{missing[0]!r} is missing or has another shape"
        )
