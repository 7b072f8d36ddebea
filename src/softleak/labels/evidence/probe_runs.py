"""Runs of a model on random inputs with known labels, in which everything is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from softleak.client import capture
from softleak.forward import logits_of, row_of_logits, seeded
from softleak.head import Head
from softleak.input_shapes import random_input
from softleak.input_spec import Layout
from softleak.share import GradientShare


@dataclass(frozen=True)
class ProbeSettings:
    """How relations are fitted and checked.

    Attributes:
        runs: the number of random inputs that the model is run on.
        fitted: how many of the runs coefficients are fitted to; the others check the fit.
        tolerance: how many roundings a relation may be off on a run.
        uncertain: a relation that leaves the scalar with a larger relative error is no evidence.
        seed: the seed of the random inputs and labels.
    """

    runs: int = 4
    fitted: int = 2
    tolerance: float = 400.0
    uncertain: float = 0.01
    seed: int = 0


PROBE = ProbeSettings()


@dataclass(frozen=True, eq=False)
class Probe:
    """One run of the model with everything known.

    Attributes:
        share: the gradients of the run.
        feature: (I,) what entered the head.
        delta: (C,) ``δ = p − y``.
        d: (I,) ``Wᵀδ``.
        positions: the spatial size of the output of each parameter's module, by parameter.
    """

    share: GradientShare
    feature: Tensor
    delta: Tensor
    d: Tensor
    positions: dict[str, int]


def probe_runs(
    model: nn.Module, head: Head, shape: Layout, count: int, seed: int
) -> Iterator[Probe]:
    """Run the model on random inputs with random labels, which are uniform on the simplex."""
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        label = torch.rand(head.classes, generator=generator, dtype=torch.double).log().neg()
        label = label / label.sum()
        # Dropout in train mode draws from the global generator.
        with seeded(seed + index, head.W), _Watch(model, head) as watch:
            share = capture(model, random_input(shape, index, generator), label)
        feature, logits = watch.seen
        delta = logits.softmax(-1) - label.to(logits.device)
        yield Probe(share, feature, delta, head.back(delta[None])[0], watch.positions)


class _Watch:
    """Hooks that record, during one run, the head's input and output and the sizes of maps."""

    def __init__(self, model: nn.Module, head: Head) -> None:
        self.entered: tuple[Tensor, Tensor]
        self.seen: tuple[Tensor, Tensor]
        self.positions: dict[str, int] = {}
        self.model, self.head = model, head

    def __enter__(self) -> _Watch:
        modules = self.model.named_modules()
        self.handles = [m.register_forward_hook(partial(self._look, n)) for n, m in modules]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _look(
        self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: object
    ) -> None:
        """Record one module's output; the whole model's comes last."""
        if name == self.head.name and isinstance(output, Tensor):
            self.entered = inputs[0].detach(), output.detach()
        if not name and (logits := logits_of(output)) is not None:
            x, z = row_of_logits(*self.entered, logits.detach())
            self.seen = x[0].double(), z[0].double()
        if isinstance(output, Tensor) and output.ndim > 2:
            for parameter, _ in module.named_parameters(name, recurse=False):
                self.positions[parameter] = output[0, 0].numel()
