"""Find the fully connected layers whose gradients are sums over few active samples.

The model is run on random inputs and observed; nothing is read from its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import SoftleakError
from softleak.core.forward import forward_batch, random_input
from softleak.core.subject import Subject
from softleak.numerics.recorder import watched
from softleak.resimulation import exact_copy


class FullyConnectedTail(nn.Module):
    """Linear layers with ReLUs between and the head, under the names they have in a network."""

    def __init__(self, subject: Subject, layers: Sequence[str]) -> None:
        super().__init__()
        self._in_order = (*layers, subject.head.name)
        for name in self._in_order:
            *folders, last = name.split(".")
            at: nn.Module = self
            for folder in folders:
                if folder not in dict(at.named_children()):
                    at.add_module(folder, nn.Module())
                at = at.get_submodule(folder)
            at.add_module(last, subject.model.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, C) of what enters the first layer (N, n)."""
        for name in self._in_order[:-1]:
            x = torch.relu(self.get_submodule(name)(x))
        logits: Tensor = self.get_submodule(self._in_order[-1])(x)
        return logits


LAYER_PROBE_INPUTS = 8  # the number of random inputs
LAYER_PROBE_SEED = 0  # their seed
LAYER_PROBE_EQUAL = 1e-9  # how far, relative to the largest, sums in another order may differ
LAYER_PROBE_FEWEST_ZEROS = 0.02  # part of the gradients that a ReLU makes zero, at least


@dataclass(frozen=True, eq=False)
class Passed:
    """One run: a layer's input (B, n) and output (B, m), and the logits (B, C).

    The output is part of the graph of the logits.
    """

    entered: Tensor
    left: Tensor
    logits: Tensor
    calls: int


def run_through(model: nn.Module, name: str, x: Tensor) -> Passed:
    """Run a model on inputs (B, …) and keep what enters and leaves one of its layers."""
    passed = run_layers(model, [name], x)
    if name not in passed:
        raise SoftleakError(f"the layer {name!r} is not used")
    return passed[name]


def run_layers(model: nn.Module, names: Iterable[str], x: Tensor) -> Mapping[str, Passed]:
    """Run a model once and keep what enters and leaves these layers; unused ones are left out."""
    kept: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}

    def keep(name: str, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept[name].append((given[0], output))
        return output.clone()  # an activation in place would overwrite what is kept

    modules = {name: model.get_submodule(name) for name in kept}
    with watched(modules, after=keep), torch.enable_grad():
        logits = forward_batch(model, x)
    return {name: Passed(*calls[0], logits, len(calls)) for name, calls in kept.items() if calls}


def first_layer(subject: Subject) -> str | None:
    """Return the name of a fully connected layer that reads the input itself, before a ReLU."""
    return next((name for name in _linears(subject) if _is_first(subject, name)), None)


def layers_before_head(subject: Subject) -> tuple[str, ...]:
    """Return the fully connected layers before the head, its nearest first, with ReLUs between.

    All layers are watched in one run, since dropout in train mode differs from run to run. Where
    it lies between two layers, the chain ends.
    """
    names, after = _linears(subject), subject.head.name
    if not names:
        return ()
    try:
        model, x = subject.once(exact_copy), _random_inputs(subject)[:2]
        run = run_layers(model, [*names, after], x)
    except SoftleakError:
        return ()
    found: list[str] = []
    while names and after in run:
        before = [n for n in names if n in run and _feeds(model, n, run[n], run[after])]
        if not before:
            break
        after = before[0]
        names = [name for name in names if name != after]
        found.append(after)
    return tuple(found)


def is_homogeneous(subject: Subject) -> bool:
    """Tell whether twice the input gives twice the logits, as without biases it does."""
    model, x = subject.once(exact_copy), _random_inputs(subject)
    once, twice = forward_batch(model, x), forward_batch(model, 2 * x)
    return _close(twice, 2 * once)


def _linears(subject: Subject) -> list[str]:
    if subject.tensor_shape is None:
        return []
    modules = subject.model.named_modules()
    return [n for n, m in modules if isinstance(m, nn.Linear) and n != subject.head.name]


def _random_inputs(subject: Subject) -> Tensor:
    generator = torch.Generator().manual_seed(LAYER_PROBE_SEED)
    shape = subject.expected_tensor_shape
    drawn = [random_input(shape, index, generator) for index in range(LAYER_PROBE_INPUTS)]
    return torch.stack([each for each in drawn if isinstance(each, Tensor)]).double()


def _is_first(subject: Subject, name: str) -> bool:
    model, x = subject.once(exact_copy), _random_inputs(subject)
    try:
        run, alone = run_through(model, name, x), run_through(model, name, x[:1])
    except SoftleakError:
        return False
    if run.calls != 1 or run.entered.shape != x.flatten(1).shape:
        return False  # A layer in between is of another size.
    if not torch.equal(run.entered, x.flatten(1).to(run.entered)) or not _is_plain(
        model, name, run
    ):
        return False
    if not _close(run.logits[:1], alone.logits):
        return False
    generator = torch.Generator().manual_seed(LAYER_PROBE_SEED)
    pull = torch.randn(run.logits.shape, generator=generator, dtype=torch.double).to(run.logits)
    slopes = torch.autograd.grad((run.logits * pull).sum(), run.left)[0]
    return float((slopes == 0).double().mean()) >= LAYER_PROBE_FEWEST_ZEROS


def _feeds(model: nn.Module, name: str, run: Passed, after: Passed) -> bool:
    """Return whether what leaves a linear layer enters the next one behind a ReLU."""
    if run.calls != 1 or after.calls != 1 or run.left.shape != after.entered.shape:
        return False
    return _is_plain(model, name, run) and torch.equal(after.entered, run.left.clamp_min(0))


def _is_plain(model: nn.Module, name: str, run: Passed) -> bool:
    """Return whether a linear layer's output is ``W x + b``, whatever its forward does."""
    linear = model.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return _close(run.left, F.linear(run.entered, linear.weight, linear.bias))


def _close(found: Tensor, expected: Tensor) -> bool:
    size = float(expected.detach().abs().max())
    return bool((found - expected).abs().max() <= LAYER_PROBE_EQUAL * size)
