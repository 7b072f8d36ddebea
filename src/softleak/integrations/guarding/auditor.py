"""The audit of a round: labels of all clients in one pass, and inputs of the first few."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from softleak.auditing import AuditReport, NamedShare, Options, audit_shares, prepared
from softleak.auditing.findings import InputFinding
from softleak.auditing.input_attack import recover_input
from softleak.auditing.trained_inputs import trained_input
from softleak.data import Normalisation
from softleak.errors import ModelError, ShareError, SoftleakError
from softleak.head import Head
from softleak.integrations.guarding.client_update import Group, Update
from softleak.integrations.guarding.round_findings import ClientAudit, RoundAudit
from softleak.integrations.guarding.several import SeveralReader
from softleak.integrations.guarding.states import State, under_own_names
from softleak.knowledge import Knowledge
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.local.proportions import StandIns
from softleak.local_training import LocalTraining
from softleak.share import GradientShare, Scale
from softleak.subject import Subject


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
        """Return what the updates of one round give away.

        Args:
            number: the number of the round.
            groups: the updates, grouped by the state that the clients were sent.
            inputs: the number of updates per group whose input is attacked as well.
        """
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

    def subject(self, state: State) -> Subject:
        """Return the model with these weights as a subject, or raise ``ModelError``."""
        model = copy.deepcopy(self._model)
        _load(model, state)
        if self._first is None:
            self._first = Subject.of(model, self.question.input_shape)
        first = self._first
        # Evidence is a fact of the architecture; everything else depends on the weights.
        now = Subject(model, Head.of(model, first.head.name), first.input_shape)
        return now.given(evidence_of, first.once(evidence_of))

    def one(self, subject: Subject, update: Update, *, inputs: bool) -> ClientAudit:
        """Return the audit of a single update.

        Args:
            subject: the model with the weights that the client received.
            update: the client's step.
            inputs: whether the input is attacked as well.

        Raises:
            SoftleakError: if something is wrong with the update.
        """
        if update.share is None:
            raise ShareError(update.reason)
        options = self._options(update)
        ready = replace(update, share=prepared(subject, update.share, options))
        return self._alike(subject, [ready], options, int(inputs))[0]

    def _clients(
        self, subject: Subject, updates: Sequence[Update], inputs: int
    ) -> list[ClientAudit]:
        """Audit updates of one subject; what is wrong with one of them becomes its reason."""
        ready, found = [], {u.node: ClientAudit(u.node, reason=u.reason) for u in updates}
        for update in updates:
            try:
                if update.share is not None:
                    options = self.question.options(update.scale_known)
                    ready.append(replace(update, share=prepared(subject, update.share, options)))
            except SoftleakError as error:
                found[update.node] = ClientAudit(update.node, reason=str(error))
        alike: dict[tuple[bool, int | None], list[Update]] = defaultdict(list)
        for update in ready:
            alike[update.scale_known, update.samples_of_steps].append(update)
        for some in alike.values():
            for client in self._alike(subject, some, self._options(some[0]), inputs):
                found[client.node] = client
            inputs = max(inputs - len(some), 0)
        return [found[update.node] for update in updates]

    def _options(self, update: Update) -> Options:
        """Return the options of an audit of one update, with what is known of its samples."""
        usual = self.question.options(update.scale_known)
        known = replace(usual.knowledge, samples=update.samples_of_steps)
        return replace(usual, knowledge=known)

    def _alike(
        self, subject: Subject, updates: Sequence[Update], options: Options, inputs: int
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


def _load(model: nn.Module, state: State) -> None:
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
