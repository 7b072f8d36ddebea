"""Protections of Flower, NVIDIA FLARE and Opacus, read from their own objects and run as such."""

from __future__ import annotations

import inspect
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softleak.core.errors import OptionError

Object = Any  # of a framework, none of which has types
Step = Mapping[str, Tensor]  # a client's step, by name: an update or a gradient
HOUR = 3600.0  # how long a message to a mod is valid


@dataclass(frozen=True)
class PrivacyClaim:
    """What is said of a protection; None is not said."""

    clip: float | None = None  # the L2 norm that a step is shortened to
    sensitivity: float | None = None  # how far one sample moves a step, as the noise was sized
    noise: float | None = None  # the standard deviation of the noise on every entry
    epsilon: float | None = None  # the privacy budget that is said to be spent
    delta: float | None = None  # the δ at which it is counted
    rate: float = 1.0  # the probability with which a round uses the sample
    rounds: int = 1  # the rounds that ε is spent on

    def __post_init__(self) -> None:
        sizes = (self.clip, self.sensitivity, self.noise, self.epsilon)
        if not all(size is None or 0 <= size < math.inf for size in sizes) or self.clip == 0:
            raise OptionError(f"expected numbers of 0 or more, and a clip above 0, got {self}")

    def beside(self, other: PrivacyClaim) -> PrivacyClaim:
        """Return what this claim says, and the other where this says nothing."""
        return replace(other, **{n: v for n, v in vars(self).items() if v != getattr(NOTHING, n)})


NOTHING = PrivacyClaim()


@dataclass(frozen=True, eq=False)
class Mechanism:
    """What happens to a step before it is sent, and what its objects say of it."""

    send: Callable[[Step], Step]
    claim: PrivacyClaim = NOTHING
    layout: Mapping[str, tuple[int, ...]] | None = None  # of a step; None if any will do
    secret: bool = True  # whether nobody can predict its noise
    spent: Callable[[], float] | None = None  # the ε of one sending, by its own accountant

    @classmethod
    def of(cls, objects: Object, said: PrivacyClaim = NOTHING) -> Mechanism:
        """Return what one object of a framework does to a step, or several in their order."""
        listed = list(objects) if isinstance(objects, Sequence) else [objects]
        kinds = {_framework(one) for one in listed}
        for kind, read in ((_OPACUS, _of_opacus), (_NVFLARE, _of_nvflare)):
            if kinds == {kind}:
                return read(listed)
        if not listed or kinds & {_OPACUS, _NVFLARE} or not all(map(callable, listed)):
            raise OptionError(
                "expected mods of Flower, filters of NVIDIA FLARE, or an optimiser of Opacus with "
                f"or without its PrivacyEngine, got {objects!r}"
            )
        return _of_flower(listed, said)


_OPACUS, _NVFLARE = "opacus", "nvflare"


def _framework(one: Object) -> str:
    parents = (parent.__module__.partition(".")[0] for parent in type(one).__mro__)
    return next((name for name in parents if name in (_OPACUS, _NVFLARE)), "")


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence what frameworks say of every update."""
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _of_flower(listed: Sequence[Object], said: PrivacyClaim) -> Mechanism:
    """Return what mods do, as ``ClientApp(mods=[…])`` runs them: the last acts first.

    Clipping mods are told the norm by the server, so that the claim has to say it.
    """
    mods = [_of_today(mod) for mod in listed]
    claim = NOTHING
    if local := next((mod for mod in mods if hasattr(mod, "clipping_norm")), None):
        size = local.sensitivity * math.sqrt(2 * math.log(1.25 / local.delta)) / local.epsilon
        claim = PrivacyClaim(
            local.clipping_norm, local.sensitivity, size, local.epsilon, local.delta
        )
    clip = said.beside(claim).clip
    if clip is None:
        raise OptionError("these mods are told the norm to clip to by the server: say the clip")
    send = partial(_through_flower, mods, clip)
    return Mechanism(send, claim, secret=False)  # Flower draws from NumPy's global generator


def _of_today(mod: Object) -> Object:
    """Return the mod of Flower's present messages that does what one of its older ones does."""
    kind = mod if inspect.isfunction(mod) else type(mod)
    if not kind.__module__.startswith("flwr.client.mod"):
        return mod
    same = getattr(import_module("flwr.clientapp.mod"), kind.__name__)
    return same if mod is kind else same(**vars(mod))


def _through_flower(mods: Sequence[Object], clip: float, step: Step) -> Step:
    """Return a step from zero weights as the mods send it."""
    flwr, chained = import_module("flwr.app"), import_module("flwr.client.mod.utils")

    def packed(arrays: Mapping[str, Object], **more: Object) -> Object:
        held = flwr.ArrayRecord({n: flwr.Array(np.asarray(a)) for n, a in arrays.items()})
        return flwr.RecordDict({"arrays": held, **more})

    def train(message: Object, _: Object) -> Object:
        numbers = flwr.MetricRecord({"num-examples": 1})
        return flwr.Message(packed(step, metrics=numbers), reply_to=message)

    task = flwr.Message(  # which outside of a run of Flower needs its metadata
        content=packed(
            {n: torch.zeros_like(t) for n, t in step.items()},
            config=flwr.ConfigRecord({"clipping_norm": clip}),
        ),
        metadata=flwr.Metadata(1, "", 1, 1, "", "", time.time(), HOUR, "train"),
    )
    context = flwr.Context(1, 1, {}, flwr.RecordDict(), {})
    with _quietly():
        reply = chained.make_ffn(train, list(mods))(task, context)
    if reply.has_error():
        raise OptionError(f"the mods refuse the step: {reply.error.reason}")
    ((_, came),) = reply.content.array_records.items()
    return {name: torch.from_numpy(came[name].numpy().copy()) for name in came}


def _of_nvflare(listed: Sequence[Object]) -> Mechanism:
    """Return what filters do to a difference of weights, the first of them first.

    They are built anew from their settings, so that their own accounts stay as they are.
    """
    own = [_anew(one) for one in listed]
    said = [float(one.epsilon) for one in own if hasattr(one, "epsilon")]
    counting = [one for one in own if hasattr(one, "get_privacy_ledger")]

    def send(step: Step) -> Step:
        dxo, context = import_module("nvflare.apis.dxo"), import_module("nvflare.apis.fl_context")
        held = {name: tensor.numpy().copy() for name, tensor in step.items()}
        carrier = dxo.DXO(dxo.DataKind.WEIGHT_DIFF, held).to_shareable()
        with _quietly():
            for one in own:
                carrier = one.process(carrier, context.FLContext())
        came = dxo.from_shareable(carrier).data
        return {n: torch.from_numpy(np.asarray(a)).view_as(step[n]) for n, a in came.items()}

    def spent() -> float:
        return math.fsum(one.get_privacy_ledger()[-1]["epsilon_total"] for one in counting)

    claim = PrivacyClaim(epsilon=math.fsum(said)) if said else NOTHING
    return Mechanism(send, claim, secret=False, spent=spent if counting else None)


def _anew(one: Object) -> Object:
    names = [n for n in inspect.signature(type(one)).parameters if hasattr(one, n)]
    return type(one)(**{name: getattr(one, name) for name in names})


def _of_opacus(listed: Sequence[Object]) -> Mechanism:
    """Return what an optimiser makes of the gradient of one sample: the sum before its mean."""
    optimiser = next((one for one in listed if hasattr(one, "clip_and_accumulate")), None)
    if optimiser is None:
        raise OptionError("expected the optimiser that PrivacyEngine.make_private returns")
    norms = optimiser.max_grad_norm
    clip = math.hypot(*norms) if isinstance(norms, Sequence) else float(norms)
    claim = PrivacyClaim(clip, clip, float(optimiser.noise_multiplier) * clip)
    history = [h for one in listed if hasattr(one, "accountant") for h in one.accountant.history]
    if len(history) > 1:
        raise OptionError("expected the same noise and sampling rate in all rounds so far")
    if history:
        claim = replace(claim, rate=float(history[0][1]), rounds=int(history[0][2]))
    layout = {str(n): tuple(p.shape) for n, p in enumerate(optimiser.params)}
    secret = bool(optimiser.secure_mode) and optimiser.generator is not None
    return Mechanism(partial(_through_opacus, optimiser), claim, layout, secret)


def _through_opacus(optimiser: Object, step: Step) -> Step:
    """Return a sample's gradient clipped and behind noise; the optimiser stays as it was."""
    held = ("grad", "grad_sample", "summed_grad")
    before = [[getattr(p, name, None) for name in held] for p in optimiser.params]
    try:
        for p, tensor in zip(optimiser.params, step.values(), strict=True):
            p.grad_sample, p.summed_grad = tensor.to(p)[None].clone(), None
        optimiser.clip_and_accumulate()
        optimiser.add_noise()
        return {n: p.grad.detach().cpu() for n, p in zip(step, optimiser.params, strict=True)}
    finally:
        for p, values in zip(optimiser.params, before, strict=True):
            for name, value in zip(held, values, strict=True):
                setattr(p, name, value)
