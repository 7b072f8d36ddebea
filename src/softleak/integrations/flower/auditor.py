"""The audit of a round: labels of all clients in one pass, inputs of as many as were asked for."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from softleak.audit import NamedShare, Options, Subject, audit_shares, prepared
from softleak.audit.inputs import recover_input
from softleak.audit.subject import with_chain
from softleak.data import Normalisation
from softleak.errors import ModelError, ShareError, SoftleakError
from softleak.head import Head
from softleak.integrations.flower.arrays import State, under_own_names
from softleak.integrations.flower.findings import ClientAudit, RoundAudit
from softleak.integrations.flower.several import SeveralReader
from softleak.integrations.flower.update import Group, Update
from softleak.share import Scale


@dataclass(frozen=True)
class Question:
    """What is asked of every round, and what is known beforehand."""

    inputs: int = 0  # updates a round whose input is computed as well: later, for it takes seconds
    input_shape: tuple[int, ...] | None = None
    normalisation: Normalisation | None = None
    seconds: float = 0.0  # an input, for matching gradients where the model is no chain

    def options(self, scale_known: bool) -> Options:
        """The same in the audit's words; inputs are asked for one by one."""
        scale: Scale = "known" if scale_known else "unknown"
        return Options(
            scale=scale, inputs=False, views=False, seconds=self.seconds,
            normalisation=self.normalisation,
        )  # fmt: skip


class Auditor:
    """Audits rounds of one model. What is a fact of the architecture is found out once."""

    def __init__(self, model: nn.Module, question: Question) -> None:
        self.question = question
        self._model = copy.deepcopy(model)
        self._first: Subject | None = None

    def audit(self, number: int, groups: Sequence[Group], *, inputs: int = 0) -> RoundAudit:
        """What the updates of one round give away; of a group the first few ``inputs`` as well."""
        start = time.perf_counter()
        clients = [client for group in groups for client in self._group(group, inputs)]
        return RoundAudit(number, tuple(clients), time.perf_counter() - start)

    def _group(self, group: Group, inputs: int) -> list[ClientAudit]:
        if all(update.share is None for update in group.updates):
            return [ClientAudit(u.node, reason=u.reason) for u in group.updates]
        try:
            return self._clients(self.subject(group.state), group.updates, inputs)
        except SoftleakError as error:  # of the model or of what it was sent: nobody's update
            return [ClientAudit(u.node, reason=u.reason or str(error)) for u in group.updates]

    def subject(self, state: State) -> Subject:
        """The model in this state, ready to be audited."""
        model = copy.deepcopy(self._model)
        _load(model, state)
        if self._first is None:
            self._first = Subject.of(model, self.question.input_shape, inputs=False)
        head = Head.of(model, self._first.head.name)
        return replace(self._first, model=model, head=head)

    def one(self, subject: Subject, update: Update, *, inputs: bool) -> ClientAudit:
        """A single update; raises what is wrong with it."""
        if update.share is None:
            raise ShareError(update.reason)
        options = self.question.options(update.scale_known)
        ready = replace(update, share=prepared(subject, update.share, options))
        return self._alike(subject, [ready], options, int(inputs))[0]

    def _clients(
        self, subject: Subject, updates: Sequence[Update], inputs: int
    ) -> list[ClientAudit]:
        ready, found = [], {u.node: ClientAudit(u.node, reason=u.reason) for u in updates}
        for update in updates:
            try:
                if update.share is not None:
                    options = self.question.options(update.scale_known)
                    ready.append(replace(update, share=prepared(subject, update.share, options)))
            except SoftleakError as error:
                found[update.node] = ClientAudit(update.node, reason=str(error))
        chained = with_chain(subject) if inputs else subject
        for known in (True, False):
            alike = [update for update in ready if update.scale_known is known]
            options = self.question.options(known)
            for client in self._alike(chained, alike, options, inputs):
                found[client.node] = client
        return [found[update.node] for update in updates]

    def _alike(
        self, subject: Subject, updates: Sequence[Update], options: Options, inputs: int
    ) -> list[ClientAudit]:
        """Updates whose scale is known, or those of which it is not: labels in one pass."""
        pairs = [(u, u.share) for u in updates if u.share is not None]
        named = [NamedShare(str(update.node), share) for update, share in pairs]
        reports = list(audit_shares(subject, named, options)) if named else []
        reader = SeveralReader(subject)
        clients = []
        for index, ((update, share), report) in enumerate(zip(pairs, reports, strict=True)):
            if index < inputs:
                found = recover_input(
                    subject, share, report.label.recovery, options.normalisation, options.seconds
                )
                report = replace(report, input=found)
            clients.append(ClientAudit(update.node, reader.read(update, share, report)))
        return clients


def _load(model: nn.Module, state: State) -> None:
    """Put a state into a model; what is not sent, such as a counter, stays as it was."""
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
