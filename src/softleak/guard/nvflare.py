"""The filter: it audits a client's result before it leaves, and fails closed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softleak.audit.leaks import Leak
from softleak.audit.weakest import Stopped
from softleak.core.errors import MissingExtra, ModelError, OptionError, ShareError, how_to_install
from softleak.core.share import GradientShare
from softleak.guard.auditor import ClientUpdate, Question, Weights
from softleak.guard.guard import Action, GuardPolicy, Promise, UpdateGuard

try:
    from nvflare.apis.analytix import AnalyticsDataType
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.event_type import EventType
    from nvflare.apis.filter import ContentBlockedException
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise MissingExtra(
        f"softleak.guard.nvflare needs NVIDIA FLARE: {how_to_install('nvflare')}"
    ) from error

__all__ = ["LeakageFilter"]

AUDITED_KINDS = [DataKind.WEIGHT_DIFF, DataKind.WEIGHTS]


def built(model: nn.Module | str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a model, which a configuration names by ``package.module:factory``."""
    if isinstance(model, nn.Module):
        return model
    module, colon, factory = str(model).partition(":")
    if not colon:
        raise ModelError(f"expected the model as package.module:factory, got {model!r}")
    made = getattr(importlib.import_module(module), factory)(**arguments)
    if not isinstance(made, nn.Module):
        raise ModelError(f"{model!r} should make an nn.Module, made a {type(made).__name__}")
    return made


def leaves(dxo: DXO) -> Iterator[DXO]:
    """Yield the objects within a collection, however deep; the object itself if it is none."""
    if dxo.data_kind != DataKind.COLLECTION:
        yield dxo
        return
    held = dxo.data.values() if isinstance(dxo.data, dict) else dxo.data
    for one in held:
        if not isinstance(one, DXO):
            raise ShareError(f"expected a collection of DXO, got a {type(one).__name__} in it")
        yield from leaves(one)


def received_state(task: Shareable) -> dict[str, Tensor]:
    """Return copies of the weights that a task brings, or raise ``ShareError``."""
    dxo = from_shareable(task)
    if dxo.data_kind != DataKind.WEIGHTS:
        raise ShareError(f"expected a task with weights, got one with {dxo.data_kind}")
    return tensors(dxo)


def tensors(dxo: DXO) -> dict[str, Tensor]:
    """Return copies of the arrays of an object as tensors, or raise ``ShareError``."""
    found = {}
    for name, array in dxo.data.items():
        try:
            found[name] = torch.as_tensor(array).detach().cpu().clone()
        except (ValueError, TypeError, RuntimeError) as error:
            raise ShareError(f"the array {name!r} cannot be read ({error})") from error
    return found


def own_step(before: Weights, dxo: DXO, lr: float | None) -> ClientUpdate:
    """Return the step that an object of weights or differences tells, or raise ``ShareError``."""
    sent = tensors(dxo)
    strange = sorted(sent.keys() - before.keys())
    if strange:
        raise ShareError(f"it sends {strange[0]!r}, which it did not receive; is it of this model?")
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        sent = {name: _moved(before[name], tensor, name) for name, tensor in sent.items()}
    return ClientUpdate(0, lr=lr, received=before).sending(sent)


def _moved(start: Tensor, difference: Tensor, name: str) -> Tensor:
    """Return a weight after its step, in double precision, which does not round the difference."""
    if start.shape != difference.shape:
        raise ShareError(
            f"the array {name!r} should have shape {tuple(start.shape)}, got "
            f"{tuple(difference.shape)}; is it of this model?"
        )
    if not start.is_floating_point():
        return start + difference.to(start.dtype)
    return start.double() + difference.double()


def defended_dxo(dxo: DXO, update: ClientUpdate, share: GradientShare, model: nn.Module) -> DXO:
    """Return an object of the same kind, types and properties that tells another share."""
    state = update.after(share, model)
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        told = update.under_sent_names(share, model)
        state = {
            n: -update.size * told[n] if n in told else torch.zeros_like(t)
            for n, t in state.items()
        }
    data = {name: _like(state[name], array) for name, array in dxo.data.items()}
    return DXO(dxo.data_kind, data, dict(dxo.meta))


def _like(tensor: Tensor, array: object) -> object:
    """Return a tensor as a tensor or an array of the same type as another."""
    if isinstance(array, Tensor):
        return tensor.to(array)
    return tensor.numpy().astype(getattr(array, "dtype", None))


class LeakageFilter(DXOFilter):  # type: ignore[misc]
    """A filter for task results that audits weights and differences of weights, and acts on them.

    It fails closed: whatever goes wrong inside it, the result does not leave. It passes metrics,
    and blocks every other kind of content that it cannot audit.

    Args:
        model: the architecture of the federation, as ``package.module:factory`` or as a model.
        action: ``warn``, ``defend``, ``refuse`` or ``prove``; an update that is refused is dropped.
        stop: the leaks that must not happen, such as ``input`` and ``class``.
        lr: the clients' learning rate; None if it is unknown.
        input_shape: the shape of one input; None to guess it from the model.
        seeds: the number of trials for each setting of the noise.
        model_args: the arguments of the factory.
        match_seconds: the time in which an image is solved for or matched; 0 attacks none.
        refuse_unattacked: whether an update is dropped if what must not leak was not attacked.
        promise: what ``prove`` proves: ``clip``, ``chance``, ``target`` and ``rounds``. Metrics and
            all else beside the arrays are then kept back, but for the number of steps.
        metrics: whether the outcome goes to the event stream, for analytics.
        loss: what the clients minimise: "ce", "bce" or "mse"; None to let the numbers decide.
    """

    def __init__(
        self, model: nn.Module | str, action: str = "defend", stop: Sequence[str] = ("input",), lr:
        float | None = None, input_shape: Sequence[int] | None = None, seeds: int = 3, model_args:
        Mapping[str, Any] | None = None, match_seconds: float = 0.0, refuse_unattacked: bool =
        False, promise: Mapping[str, Any] | None = None, metrics: bool = True, loss: str | None =
        None,
    ) -> None:  # fmt: skip
        super().__init__(supported_data_kinds=AUDITED_KINDS, data_kinds_to_filter=AUDITED_KINDS)
        policy = GuardPolicy(
            _action(action),
            frozenset(map(Leak.named, stop)),
            seeds,
            refuse_unattacked=refuse_unattacked,
            promise=None if promise is None else Promise(**promise),
        )
        shape = None if input_shape is None else tuple(input_shape)
        question = Question(input_shape=shape, seconds=match_seconds, loss=loss)
        self.guard = UpdateGuard(built(model, model_args or {}), policy, question)
        self.lr, self.metrics = lr, metrics
        self._received: dict[str, Tensor] | None = None
        self._round = 0
        self._last: Stopped | None = None
        self._proved = 0

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
                passing = [] if self.guard.policy.promise else [DataKind.METRICS]
                if dxo.data_kind not in (*AUDITED_KINDS, *passing):
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
        update = own_step(self._received, dxo, self.lr)
        outcome = self.guard.outcome(update, self._last, np.random.default_rng(), self._proved)
        seconds = perf_counter() - start
        self.guard.say(self._round, outcome, seconds)
        found = outcome.metrics(self.guard.policy.stop, seconds)
        dropped = float(bool(outcome.refusal))
        self._count(fl_ctx, {**found, "guard-dropped": dropped, "guard-failed": 0.0})
        if outcome.refusal:
            raise ContentBlockedException(f"softleak: {outcome.refusal}")
        if outcome.sent is None:
            return None
        self._last = outcome.stopped
        if outcome.promise is not None:
            self._proved += 1
            held = {n: v for n, v in dxo.meta.items() if n == MetaKey.NUM_STEPS_CURRENT_ROUND}
            dxo = DXO(dxo.data_kind, dxo.data, held)
        return defended_dxo(dxo, update, outcome.sent, self.guard.model)

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
    known = {action.name.lower(): action for action in Action}
    if name.lower() not in known:
        raise OptionError(f"expected one of {', '.join(known)} as the action, got {name!r}")
    return known[name.lower()]
