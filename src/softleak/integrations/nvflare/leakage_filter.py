"""The filter: it audits a client's result before it leaves, and fails closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor, nn

from softleak.auditing.weakest import Stopped
from softleak.errors import OptionError, ShareError
from softleak.integrations.guarding.auditor import Question
from softleak.integrations.guarding.guard_outcome import GuardOutcome
from softleak.integrations.guarding.update_guard import Action, GuardPolicy, UpdateGuard
from softleak.integrations.nvflare.exchange import (
    AUDITED_KINDS,
    built,
    defended_dxo,
    leaves,
    own_step,
    received_state,
)
from softleak.vocabulary import Leak


class LeakageFilter(DXOFilter):  # type: ignore[misc]
    """A filter for task results that audits weights and differences of weights, and acts on them.

    It fails closed: whatever goes wrong inside it, the result does not leave. It passes metrics,
    and blocks every other kind of content that it cannot audit.

    Args:
        model: the architecture of the federation, as ``package.module:factory`` or as a model.
        action: ``warn``, ``defend`` or ``refuse``; an update that is refused is dropped.
        stop: the leaks that must not happen, such as ``input`` and ``class``.
        lr: the clients' learning rate; None if it is unknown.
        input_shape: the shape of one input; None to guess it from the model.
        seeds: the number of trials for each setting of the noise.
        model_args: the arguments of the factory.
        match_seconds: the time in which the image of a network that cannot be walked back is
            solved for or matched; with 0 it is not attacked.
        refuse_unattacked: whether an update is dropped if what must not leak was not attacked.
        metrics: whether the outcome goes to the event stream, for analytics.
    """

    def __init__(
        self,
        model: nn.Module | str,
        action: str = "defend",
        stop: Sequence[str] = ("input",),
        lr: float | None = None,
        input_shape: Sequence[int] | None = None,
        seeds: int = 3,
        model_args: Mapping[str, Any] | None = None,
        match_seconds: float = 0.0,
        refuse_unattacked: bool = False,
        metrics: bool = True,
    ) -> None:
        super().__init__(supported_data_kinds=AUDITED_KINDS, data_kinds_to_filter=AUDITED_KINDS)
        policy = GuardPolicy(
            _action(action), frozenset(map(_leak, stop)), seeds, refuse_unattacked=refuse_unattacked
        )
        shape = None if input_shape is None else tuple(input_shape)
        question = Question(input_shape=shape, seconds=match_seconds)
        self.guard = UpdateGuard(built(model, model_args or {}), policy, question)
        self.lr, self.metrics = lr, metrics
        self._received: dict[str, Tensor] | None = None
        self._round = 0
        self._last: Stopped | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keep the weights of a task before the client trains on them, perhaps in place."""
        super().handle_event(event_type, fl_ctx)
        if event_type != EventType.BEFORE_TASK_EXECUTION:
            return
        self._received = None
        task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        try:
            self._received = received_state(task)
            self._round = int(task.get_header(AppConstants.CURRENT_ROUND, 0) or 0)
        except Exception as error:  # a task without weights has a result without any, or is blocked
            self.log_debug(fl_ctx, f"softleak keeps no weights of this task: {error}")

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return what may leave, or raise ``ContentBlockedException``."""
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)  # an error leaves, and nothing that may come with it
        try:
            for dxo in leaves(from_shareable(shareable)):
                if dxo.data_kind not in (*AUDITED_KINDS, DataKind.METRICS):
                    raise ShareError(f"{dxo.data_kind} cannot be audited")
            return super().process(shareable, fl_ctx)
        except ContentBlockedException:
            raise
        except Exception as error:
            self._count(fl_ctx, {"guard-failed": 1.0})
            raise ContentBlockedException(
                f"softleak could not audit this update, so it does not leave: {error}"
            ) from error

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return what is sent instead of an object; None if it may leave as it is."""
        if self._received is None:
            raise ShareError("the weights that this client received are not known")
        start = perf_counter()
        step = own_step(self._received, dxo, self.lr, self.guard.model)
        outcome = self.guard.outcome(step, 0, self._last, np.random.default_rng())
        seconds = perf_counter() - start
        self.guard.say(self._round, outcome, seconds)
        self._count(fl_ctx, self._numbers(outcome, seconds))
        if outcome.refusal:
            raise ContentBlockedException(f"softleak: {outcome.refusal}")
        if outcome.sent is None:
            return None
        self._last = outcome.stopped
        return defended_dxo(dxo, step, outcome.sent)

    def _numbers(self, outcome: GuardOutcome, seconds: float) -> dict[str, float]:
        """Return the outcome in numbers."""
        found = outcome.metrics(self.guard.policy.stop, seconds)
        return {**found, "guard-dropped": float(bool(outcome.refusal)), "guard-failed": 0.0}

    def _count(self, fl_ctx: FLContext, numbers: Mapping[str, float]) -> None:
        """Send numbers to the event stream; a stream that fails does not let the update out."""
        if not self.metrics or fl_ctx.get_engine() is None:
            return
        for name, value in numbers.items():
            scalar = create_analytic_dxo(
                tag=name, value=value, data_type=AnalyticsDataType.SCALAR, global_step=self._round
            )
            send_analytic_dxo(self, scalar, fl_ctx)


def _action(name: str) -> Action:
    try:
        return Action[name.upper()]
    except KeyError:
        known = ", ".join(action.name.lower() for action in Action)
        raise OptionError(f"expected one of {known} as the action, got {name!r}") from None


def _leak(name: str) -> Leak:
    try:
        return Leak(name)
    except ValueError:
        known = ", ".join(leak.value for leak in Leak)
        raise OptionError(f"expected leaks among {known}, got {name!r}") from None
