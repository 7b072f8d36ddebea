"""A mod that says, before a client trains, what one step on its own batch would give away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from softleak.client import capture
from softleak.errors import SoftleakError
from softleak.integrations.flower import arrays as records
from softleak.integrations.flower.guard import add_metrics
from softleak.integrations.guarding.auditor import Auditor, Question
from softleak.integrations.guarding.states import State
from softleak.labels.batch import BatchReader

LOGGER = logging.getLogger("softleak")
OwnBatch = Callable[[Context], tuple[Tensor, Tensor]]  # inputs (B, …) and classes or labels


class BatchPreview:
    """A mod for ``ClientApp(mods=[…])`` that simulates one step on the client's own batch.

    A guard sees the update alone. The client has its data as well, so this mod computes one
    gradient of one batch at the weights received, which is what one step of training costs, and
    compares what that gradient proves with the classes that are there. Nothing is sent but numbers.

    Args:
        model: the architecture of the federation; the weights are those received.
        batch: returns one batch of the client's own data: inputs (B, …) and their classes (B,).
        question: what is known beforehand, such as the shape of an input.
        metrics: whether ``preview-…`` numbers are added to the reply's metrics.
    """

    def __init__(
        self, model: nn.Module, batch: OwnBatch, *, question: Question | None = None,
        metrics: bool = True,
    ) -> None:  # fmt: skip
        self._auditor, self._batch = Auditor(model, question or Question()), batch
        self.metrics = metrics

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Say what one step would give away, and let the client train."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        found: dict[str, float] = {}
        try:
            _, received = records.only_arrays(message.content)
            found = self._simulated(records.tensors(received), context)
        except SoftleakError as error:
            LOGGER.warning("the client's own batch could not be simulated: %s", error)
        reply = call_next(message, context)
        if self.metrics and found and not reply.has_error():
            add_metrics(reply, found)
        return reply

    def _simulated(self, state: State, context: Context) -> dict[str, float]:
        """Return what one gradient of one batch proves, and how long it took to find out."""
        start = perf_counter()
        subject = self._auditor.subject(state)
        x, y = self._batch(context)
        share = capture(subject.model, x, y)
        simulated = perf_counter()
        read = subject.once(BatchReader.of).read(share, len(x))
        own = set((y if y.ndim == 1 else y.argmax(1)).tolist())
        proved = set(read.present)
        LOGGER.info(
            "one step on %d samples of %d classes would prove %d of these classes, and at least "
            "%d gradients", len(x), len(own), len(proved & own), read.gradients,
        )  # fmt: skip
        return {
            "preview-samples": float(len(x)),
            "preview-classes": float(len(own)),
            "preview-proved": float(len(proved & own)),
            "preview-gradients": float(read.gradients),
            "preview-step-seconds": simulated - start,
            "preview-seconds": perf_counter() - start,
        }
