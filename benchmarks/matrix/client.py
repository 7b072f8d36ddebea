"""A client that trains with torch's own losses and optimisers, from the weights it was sent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from benchmarks.adversary.stranger import Stranger, number_of
from benchmarks.adversary.training import pool
from benchmarks.matrix.losses import LossFunction, cross_entropy
from benchmarks.matrix.networks import Reader
from softleak.core.input_spec import InputPart, InputSpec, Layout

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
State = dict[str, Tensor]
POSITIVES = 3  # classes of a label of several
DROPPED = 0.3  # the part of the feature that is dropped where a model has no dropout of its own
SENTENCES = 64


@dataclass(frozen=True, eq=False)
class Data:
    """Some samples.

    Attributes:
        x: the inputs (B, *shape).
        y: their labels (B, C) in float64: one-hot, or ones at several classes.
    """

    x: Tensor
    y: Tensor

    @property
    def classes(self) -> frozenset[int]:
        """The classes that some sample has."""
        return frozenset((self.y > 0.5).any(0).nonzero()[:, 0].tolist())

    def and_also(self, other: Data) -> Data:
        return Data(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]))


@dataclass(frozen=True, eq=False)
class Client:
    """A client that holds data and trains a network.

    Attributes:
        network: the network that the client is sent.
    """

    network: Stranger

    @cached_property
    def model(self) -> nn.Module:
        """The model with the weights before the step, in eval mode."""
        return self.network.make().eval()

    @cached_property
    def other(self) -> nn.Module:
        """The model with the weights of another seed."""
        return self.network.make(seed=1).eval()

    @cached_property
    def before(self) -> State:
        """The weights and buffers before the step."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    @cached_property
    def layout(self) -> Layout:
        """What the auditor knows of one input."""
        network = self.network
        if not isinstance(network, Reader):
            return network.shape
        return InputSpec((InputPart(network.keyword, network.shape, True, network.words),))

    @cached_property
    def _pool(self) -> Tensor:
        """The inputs that samples are drawn from."""
        network = self.network
        if isinstance(network, Reader):
            source = torch.Generator().manual_seed(number_of(network.name))
            return torch.randint(1, network.words, (SENTENCES, *network.shape), generator=source)
        return pool(network.shape, 10, number_of(network.name))

    @cached_property
    def classes(self) -> int:
        """The number of classes."""
        model = self.model
        with torch.no_grad():
            return int(model(self._pool[:2]).shape[-1])

    def draw(self, size: int, seed: int, positives: int = 1) -> Data:
        """Return some samples, each of as many classes as are ``positives``."""
        source = torch.Generator().manual_seed(number_of(self.network.name, size, seed))
        rows = torch.randint(len(self._pool), (size,), generator=source)
        y = torch.zeros(size, self.classes, dtype=torch.double)
        for label in y:
            label[torch.randperm(self.classes, generator=source)[:positives]] = 1
        return Data(self._pool[rows], y)

    def gradient(
        self,
        data: Data,
        loss: LossFunction = cross_entropy,
        *,
        dropping: bool = False,
        model: nn.Module | None = None,
        factor: float = 1.0,
        clip: float | None = None,
    ) -> State:
        """Return the gradient of the mean loss by parameter name.

        Args:
            data: the samples.
            loss: what is minimised.
            dropping: whether dropout is active.
            model: the model with other weights than those that were sent.
            factor: what the loss is multiplied by, as a ``GradScaler`` does.
            clip: the largest norm of the gradient; None clips nothing.
        """
        model = copy.deepcopy(model or self.model)
        if dropping:
            _drop(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=factor, enabled=factor != 1.0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number_of(self.network.name))
            _backward(model, data, loss, scaler)
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    def features(
        self, data: Data, *, dropping: bool = False, model: nn.Module | None = None
    ) -> Tensor:
        """Return what entered the last layer (B, I), in float64, when ``gradient`` was computed."""
        model = copy.deepcopy(model or self.model)
        if dropping:
            _drop(model)
        seen: list[Tensor] = []
        _last(model).register_forward_pre_hook(lambda _, x: seen.append(x[0].double()))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(number_of(self.network.name))
            model(data.x)
        return seen[0] if seen[0].ndim == 2 else seen[0][:, -1]

    def after(
        self, optimiser: Optimiser, steps: Sequence[Data], schedule: Schedule | None = None
    ) -> State:
        """Return the weights after one step on each of some batches."""
        model = copy.deepcopy(self.model)
        chosen = optimiser(model.parameters())
        rates = None if schedule is None else schedule(chosen)
        for data in steps:
            chosen.zero_grad()
            _backward(model, data, cross_entropy)
            chosen.step()
            if rates is not None:
                rates.step()
        return model.state_dict()


def _drop(model: nn.Module) -> None:
    """Make dropout active, or drop entries before the last layer where the model has none."""
    own = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    for module in own:
        module.train()
    if not own:
        _last(model).register_forward_pre_hook(lambda _, x: functional.dropout(x[0], DROPPED))


def _last(model: nn.Module) -> nn.Linear:
    """Return the last linear layer, which is the head of every model here."""
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1]


def _backward(
    model: nn.Module, data: Data, loss: LossFunction, scaler: torch.amp.GradScaler | None = None
) -> None:
    """Compute the gradient of the mean loss."""
    logits = model(data.x)
    value = loss(logits, data.y.to(logits.dtype))
    value = value if scaler is None else scaler.scale(value)
    value.backward()  # type: ignore[no-untyped-call]
