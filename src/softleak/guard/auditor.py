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

from softleak.audit.input_attacks import recover_input, trained_input
from softleak.audit.leaks import Leak
from softleak.audit.options import Options
from softleak.audit.report import AuditReport, InputFinding
from softleak.audit.run import NamedShare, audit_shares, prepared
from softleak.audit.several import counted, parts_of_classes, read_samples
from softleak.core.errors import ModelError, ShareError, SoftleakError
from softleak.core.head import Head
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.loss import Loss, stated_loss
from softleak.core.results import Why, because
from softleak.core.share import GradientShare, LocalTraining, Scale
from softleak.core.subject import Subject
from softleak.core.vocabulary import State
from softleak.io.weights import own_names
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.local.proportions import Balance, StandIns
from softleak.present.words import composition_words, headline

Weights = Mapping[str, Tensor]  # weights and buffers by name


def step_between(
    before: Weights, after: Weights, lr: float | None, client: LocalTraining | None = None
) -> GradientShare:
    """Return what a client made of the state it received: the gradient of its one plain step.

    Without a learning rate it is multiplied by an unknown factor. Of a ``client`` that trained
    locally it is ``before − after``. Raises ``ShareError`` if the states are not those of one
    model, or hold NaN or infinity.
    """
    if not after:
        raise ShareError("it sent no arrays, so there is nothing to audit")
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ShareError(
            f"it sent {len(after)} arrays under other names than the {len(before)} it received, "
            f"first {odd[0]!r}; is it of this model?"
        )
    for name, start in before.items():
        if after[name].is_floating_point() != start.is_floating_point():
            raise ShareError(f"the array {name!r} should be {start.dtype}, got {after[name].dtype}")
    rate = 1.0 if lr is None or client is not None else lr
    share = GradientShare.from_update(before, after, lr=rate)
    share.check_finite()
    return share if client is None else replace(share, made_by=client)


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """One client's step as a share, or the reason why there is none."""

    node: int  # the number of the client's node
    share: GradientShare | None = None  # as ``step_between`` makes it; None if it was not read
    lr: float | None = None  # the learning rate; None if it is unknown
    samples: int | None = None  # the number of samples that the client says it used
    reason: str = ""  # why there is no share
    client: LocalTraining | None = None  # how it trained; None if no more than lr is known
    received: Weights = field(default_factory=dict)  # what the client was sent

    def sending(self, after: Weights, samples: int | None = None) -> ClientUpdate:
        """Return the update of a client that sends this state, or raise ``ShareError``."""
        told = {name: self.received[name] for name in after if name in self.received}
        return replace(self, share=step_between(told, after, self.lr, self.client), samples=samples)

    def under_sent_names(self, share: GradientShare, model: nn.Module) -> GradientShare:
        """Return a share under the names of the arrays that were sent, not the model's own."""
        names = own_names(self.share or {}, model)
        return share.renamed({own: name for name, own in names.items()})

    def after(self, share: GradientShare, model: nn.Module) -> dict[str, Tensor]:
        """Return the received state after one step of another share."""
        told = self.under_sent_names(share, model)
        moved = {n: t.double() - self.size * told[n] for n, t in self.received.items() if n in told}
        return {name: moved.get(name, t).to(t.dtype) for name, t in self.received.items()}

    @property
    def size(self) -> float:
        """The step of weights that a gradient of one stands for."""
        return 1.0 if self.lr is None else self.lr

    @cached_property
    def gradient(self) -> GradientShare | None:
        """The share as the gradient of one plain step, whatever the training was."""
        if self.share is None or self.share.made_by is None:
            return self.share
        return replace(self.share.scaled(1 / self.size), made_by=None)

    @property
    def samples_of_steps(self) -> int | None:
        """The number of samples if it was said that several steps were taken on several."""
        if self.samples is None or self.client is None or self.client.epochs is None:
            return None
        batch = self.client.batch_size or self.samples
        return self.samples if batch < self.samples else None

    @property
    def scale_known(self) -> bool:
        """Whether the share is the gradient itself, and not a multiple of it."""
        return self.lr is not None


def by_state(updates: Sequence[ClientUpdate]) -> list[list[ClientUpdate]]:
    """Return updates grouped by the state that their clients were sent."""
    groups: dict[int, list[ClientUpdate]] = defaultdict(list)
    for update in updates:
        groups[id(update.received) if update.received else 0].append(update)
    return list(groups.values())


def read_several(
    subject: Subject, update: ClientUpdate, report: AuditReport, stand_ins: StandIns | None = None
) -> AuditReport:
    """Return the report on several samples with their number per class, or why not counted."""
    sent, gradient = update.share, update.gradient
    attacked = report.several and report.composition.attacked
    if sent is None or gradient is None or not attacked:
        return report
    reason = _uncounted(subject, update, gradient)
    if not reason and update.samples is not None:
        found = counted(subject, gradient, report.composition, update.samples)
        report = replace(report, composition=found)
        if update.samples >= subject.head.classes:  # more than the head's rows tell apart
            return report
        known = replace(report.knowledge, scale="known", samples=update.samples, is_gradient=True)
        return replace(report, samples=read_samples(subject, gradient, found, Options(known)))
    parts = parts_of_classes(subject, sent, update.samples, stand_ins)
    uncounted = because(Why.NOT_COUNTED, why=reason)
    return replace(report, composition=report.composition.because(uncounted, parts))


def _uncounted(subject: Subject, update: ClientUpdate, share: GradientShare) -> str:
    """Return why samples cannot be counted; empty if they can."""
    if update.samples is None:
        return "the client did not say how many it used"
    if update.lr is None:
        return "the learning rate is not known"
    balance = subject.once(_balance)
    if balance is None:
        return (
            "counting takes one step on all of them, which cannot be checked on this network "
            "(it needs a ReLU before the last layer)"
        )
    checked = balance.check(share, subject.parameters, update.lr)
    return "" if checked.proved else (
        f"counting takes one step on all of them, and {checked.reason}"
    )  # fmt: skip


def _balance(subject: Subject) -> Balance | None:
    """Return the check for a single step; None if this network does not allow it."""
    return Balance.of(subject.model, subject.head, subject.input_shape)


@dataclass(frozen=True, eq=False)
class ClientAudit:
    """What was found in one client's update."""

    node: int  # the number of the client's node
    report: AuditReport | None = None  # the report; None if the update was not audited
    reason: str = ""  # why there is no report

    @property
    def leaks(self) -> frozenset[Leak]:
        """The leaks that were proved."""
        return frozenset() if self.report is None else self.report.leaks

    @property
    def unattacked(self) -> frozenset[Leak]:
        """The leaks that were not attacked, so that nothing is known of them."""
        return frozenset(Leak) if self.report is None else self.report.unattacked

    @property
    def contradicted(self) -> bool:
        """Whether the update contradicts what was stated of it, so that attacks say little."""
        return self.report is not None and not self.report.fit.holds

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
    """What was found in the updates of a round."""

    number: int  # the number of the round
    clients: tuple[ClientAudit, ...]
    seconds: float  # the time that the audit took

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
        return sum(self.count(leak, state) for state in State if state.attacked)

    def metrics(self) -> dict[str, float]:
        """Return the round in numbers, for Flower's metrics.

        A leak is a fraction of the updates on which it was attacked; without any, that number is
        missing.
        """
        tried = {leak: self.attacked(leak) for leak in Leak}
        return {
            **{f"softleak-{k.value}": self.count(k) / n for k, n in tried.items() if n},
            **{
                f"softleak-{k.value}-not-attacked": float(len(self.audited) - n)
                for k, n in tried.items()
            },
            "softleak-contradicted": float(sum(client.contradicted for client in self.clients)),
            "softleak-audited": float(len(self.audited)),
            "softleak-refused": float(len(self.clients) - len(self.audited)),
            "softleak-several": float(sum(not client.single for client in self.audited)),
            "softleak-seconds": self.seconds,
        }


@dataclass(frozen=True)
class Question:
    """What is asked of every round, and what is known beforehand."""

    # Updates per round whose input is attacked as well: seconds for each, so it is done later.
    inputs: int = 0
    input_shape: tuple[int, ...] | None = None  # of one input; None to guess it from the model
    normalisation: Normalisation | None = None  # turns pixels into inputs
    seconds: float = 0.0  # for matching one input, where the model is no plain sequence of layers
    # How the clients train locally, such as ``Client(epochs=1, batch_size=32, lr=UNKNOWN)``. By
    # default what the round's config says; if that is no more than ``lr``, one plain step.
    client: LocalTraining | None = None
    # Images with their classes, on which known local training is simulated: every update then says
    # how large a part of the client's data each class is. 60 runs for each state and sample count.
    stand_ins: StandIns | None = None
    loss: Loss | str | None = None  # "ce", "bce", "mse" or a ``Loss``; None: the numbers decide

    def options(self, scale_known: bool, samples: int | None = None) -> Options:
        """Return the options of an audit, which leave out inputs: those are attacked one by one."""
        scale: Scale = "known" if scale_known else "unknown"
        return Options(
            Knowledge(scale=scale, samples=samples, loss=stated_loss(self.loss)),
            inputs=False, views=False,
            seconds=self.seconds, normalisation=self.normalisation,
        )  # fmt: skip


class Auditor:
    """An auditor of all rounds of one model, whose weights are those of each round.

    The head and the evidence are facts of the architecture, so they are found once.
    """

    def __init__(self, model: nn.Module, question: Question) -> None:
        self.question = question
        self.model = copy.deepcopy(model)
        self._first: Subject | None = None

    def audit(self, number: int, updates: Sequence[ClientUpdate], *, inputs: int = 0) -> RoundAudit:
        """Return what the updates of one round give away, and the first inputs of each state."""
        start = time.perf_counter()
        clients = [client for some in by_state(updates) for client in self._group(some, inputs)]
        return RoundAudit(number, tuple(clients), time.perf_counter() - start)

    def _group(self, updates: Sequence[ClientUpdate], inputs: int) -> list[ClientAudit]:
        """Audit the updates of clients that were sent the same state."""
        refused = [ClientAudit(u.node, reason=u.reason) for u in updates]
        if all(update.share is None for update in updates):
            return refused
        try:
            return self._clients(self.subject(updates[0].received), updates, inputs)
        except SoftleakError as error:  # the model or its state is wrong, not an update
            return [replace(one, reason=one.reason or str(error)) for one in refused]

    def subject(self, state: Weights) -> Subject:
        """Return the model with these weights as a subject, or raise ``ModelError``."""
        model = copy.deepcopy(self.model)
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
        return replace(update, share=prepared(subject, update.share, Options()))

    def one(self, subject: Subject, update: ClientUpdate, *, inputs: bool) -> ClientAudit:
        """Return the audit of a single update that is ``ready``, with its input if asked for."""
        return self._alike(subject, [update], int(inputs))[0]

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
            for client in self._alike(subject, some, inputs):
                found[client.node] = client
            inputs = max(inputs - len(some), 0)
        return [found[update.node] for update in updates]

    def _alike(
        self, subject: Subject, updates: Sequence[ClientUpdate], inputs: int
    ) -> list[ClientAudit]:
        """Audit updates of which the same is known, all labels in one pass."""
        options = self.question.options(updates[0].scale_known, updates[0].samples_of_steps)
        named = [NamedShare(str(u.node), u.share) for u in updates if u.share is not None]
        clients: list[ClientAudit] = []
        for update, report in zip(updates, audit_shares(subject, named, options), strict=True):
            if len(clients) < inputs:
                report = replace(report, input=_input(subject, update, report, options))
            told = read_several(subject, update, report, self.question.stand_ins)
            clients.append(ClientAudit(update.node, told))
        return clients


def _input(
    subject: Subject, update: ClientUpdate, report: AuditReport, options: Options
) -> InputFinding:
    """Attack the input behind a gradient, or behind the local steps that were declared."""
    sent, gradient = update.share, update.gradient
    if sent is None or gradient is None:
        return report.input
    training = sent.made_by
    if training is None or (training.single_steps == 1 and training.epochs is None):
        return recover_input(subject, gradient, report.label.recovery, options)
    return trained_input(subject, sent, replace(options, inputs=True))


def _load(model: nn.Module, state: Weights) -> None:
    """Copy a state into a model; what was not sent, such as a counter, stays as it was."""
    names, own = own_names(state, model), model.state_dict()
    held = {names[name]: tensor for name, tensor in state.items()}
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
