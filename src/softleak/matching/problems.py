"""Many independent reconstructions as one function of a matrix: a row each, one loss each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from softleak.errors import OptionError
from softleak.matching.network import Network
from softleak.matching.objectives import Objective
from softleak.matching.priors import Prior

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Targets:
    """What P clients sent, and the labels assumed: gradients (P, …), the rest (P, ·)."""

    gradients: tuple[Tensor, ...]
    feature: Tensor
    label: Tensor  # kept where not free
    free: Tensor  # (P,) whether the label is optimised with the input

    def select(self, rows: Tensor) -> Targets:
        """Those of some problems."""
        gradients = tuple(g[rows] for g in self.gradients)
        return Targets(gradients, self.feature[rows], self.label[rows], self.free[rows])


@dataclass(frozen=True, eq=False)
class Problems:
    """P problems over rows of unknowns: an input, flat, and then the logits of its label."""

    network: Network
    names: tuple[str, ...]
    objective: Objective
    priors: Sequence[Prior]
    input_shape: tuple[int, ...]
    targets: Targets
    compiled: bool = False

    def select(self, rows: Tensor) -> Problems:
        """Some of the problems."""
        return replace(self, targets=self.targets.select(rows))

    def pack(self, inputs: Tensor, logits: Tensor) -> Tensor:
        """Unknowns (P, n) of inputs (P, …) and logits (P, C)."""
        return torch.cat([inputs.flatten(1), logits], 1)

    def inputs(self, unknowns: Tensor) -> Tensor:
        """(P, …)."""
        flat = unknowns[:, : -self.network.head.classes]
        return flat.reshape(len(unknowns), *self.input_shape)

    def labels(self, unknowns: Tensor) -> Tensor:
        """(P, C): the labels kept, or what the logits have become."""
        logits = unknowns[:, -self.network.head.classes :]
        return torch.where(self.targets.free[:, None], logits.softmax(1), self.targets.label)

    def evaluator(self) -> Evaluate:
        """Unknowns (P, n) to losses (P,) and their gradients (P, n).

        All problems at once, or one after the other if the model cannot be vectorised.
        """
        function = vmap(grad_and_value(self._loss), randomness="different")
        if self.compiled:
            function = _compiled(function)
        t = self.targets
        vectorised = True

        def evaluate(unknowns: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal vectorised
            if vectorised:
                try:
                    slope, loss = function(unknowns, t.gradients, t.feature, t.label, t.free)
                    return loss, slope
                except OptionError:
                    raise
                except Exception:  # control flow by data, an operation without a batched form
                    vectorised = False
            return self._one_by_one(unknowns)

        return evaluate

    def _one_by_one(self, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        """The same by plain autograd, without vectorisation and without fused recurrent layers."""
        alone, t = replace(self, network=replace(self.network, plain=True)), self.targets
        losses, slopes = [], []
        with torch.enable_grad():
            for i, row in enumerate(unknowns):
                x = row.detach().requires_grad_()
                sent = [g[i] for g in t.gradients]
                loss = alone._loss(x, sent, t.feature[i], t.label[i], t.free[i])
                slopes.append(torch.autograd.grad(loss, x)[0])
                losses.append(loss.detach())
        return torch.stack(losses), torch.stack(slopes)

    def _loss(
        self, unknowns: Tensor, sent: Sequence[Tensor], feature: Tensor, label: Tensor, free: Tensor
    ) -> Tensor:
        """Eq. 8 of one problem."""
        classes = self.network.head.classes
        x = unknowns[:-classes].view(self.input_shape)
        y = torch.where(free, unknowns[-classes:].softmax(0), label)
        if self.objective.beta:
            found, own = self.network.gradient_and_feature(x, y)
            extra = self.objective.beta * self.objective.features(own, feature)
        else:
            found, extra = self.network.gradient(x, y), x.new_zeros(())
        loss = self.objective.gradients(*self._weighted(found, sent)) + extra
        for prior in self.priors:
            loss = loss + prior(x)
        return loss

    def _weighted(
        self, found: dict[str, Tensor], sent: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Both sides, the head's weight gradient times the root of its weight, or left out."""
        alpha, head = self.objective.alpha, self.network.head.weight_name
        pairs = {name: (found[name], g) for name, g in zip(self.names, sent, strict=True)}
        if alpha != 1 and head in pairs:
            ours, theirs = pairs.pop(head)
            if alpha:
                pairs[head] = (ours * alpha**0.5, theirs * alpha**0.5)
        return [ours for ours, _ in pairs.values()], [theirs for _, theirs in pairs.values()]


def _compiled(
    function: Callable[..., tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The function compiled at its first call, which is when it may turn out to be impossible."""
    from torch._dynamo.exc import TorchDynamoException  # takes a second to import

    torch.compiler.reset()  # or what was compiled for other problems counts against a limit
    fast = torch.compile(function, dynamic=False)

    def run(*given: object) -> tuple[Tensor, Tensor]:
        try:
            return fast(*given)
        except TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise OptionError(
                f"gradient matching could not be compiled ({reason}); go without compiling, or "
                "install a C++ compiler"
            ) from error

    return run
