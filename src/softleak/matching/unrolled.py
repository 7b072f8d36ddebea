"""Match an update of several local steps: a guess follows the slope of what its own update leaves.

The unrolled client is a differentiable function of one input and its label. Both are found at once
by L-BFGS in float64, each layer of the update divided by its size.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from softleak.core.client import LocalProgram
from softleak.core.errors import ModelError
from softleak.core.share import GradientShare
from softleak.core.subject import Subject


@dataclass(frozen=True)
class UnrolledMatching:
    """Search for the input and the label whose local training gives an update."""

    rounds: int = 12  # the largest number of rounds of L-BFGS
    steps: int = 50  # the steps of a round; time is looked at between rounds
    history: int = 100  # the pairs of steps that L-BFGS remembers
    contrast: float = 0.05  # the size of the noise that a search begins with
    leading: float = 2.0  # the logit by which the class that the update raises leads at first
    explained: float = 1e-7  # an update counts as explained if this part of its size is left
    seconds: float | None = None  # the time limit, after which the best so far is returned
    seed: int = 0  # the seed of the first guess

    def __call__(self, subject: Subject, share: GradientShare) -> UnrolledMatch:
        """Return the input and the label that come nearest to an update of one sample.

        The share is ``before − after``, with a client in ``made_by`` of which everything is known.
        """
        if share.made_by is None:
            raise ModelError("expected an update of local training, got a gradient")
        began = time.perf_counter()
        misfit = _misfit(subject, share)
        x, logits = self._start(subject, share)
        optimiser = torch.optim.LBFGS(
            [x, logits], max_iter=self.steps, history_size=self.history, tolerance_grad=0.0,
            tolerance_change=0.0, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def loss() -> Tensor:
            optimiser.zero_grad()
            found = misfit(x, torch.softmax(logits, 0))
            found.backward()  # type: ignore[no-untyped-call]
            return found

        # Fused attention kernels cannot be differentiated twice; the plain one can.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            for _ in range(self.rounds):
                optimiser.step(loss)  # type: ignore[no-untyped-call]
                spent = time.perf_counter() - began
                if self.seconds is not None and spent > self.seconds:
                    break
        with torch.no_grad():
            label = torch.softmax(logits, 0)
            left = float(misfit(x, label)) ** 0.5
        return UnrolledMatch(x.detach()[0], label, left, left <= self.explained)

    def _start(self, subject: Subject, share: GradientShare) -> tuple[Tensor, Tensor]:
        """Return noise (1, …) that is nearly grey, and logits (C,) of the class that was raised."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (1, *subject.expected_tensor_shape)
        x = self.contrast * torch.randn(shape, generator=generator, dtype=torch.double)
        logits = torch.zeros(subject.head.classes, dtype=torch.double)
        logits[int(share[subject.head.weight_name].sum(1).argmin())] = self.leading
        device = subject.head.W.device
        return x.to(device).requires_grad_(), logits.to(device).requires_grad_()


@dataclass(frozen=True, eq=False)
class UnrolledMatch:
    """The input (…) and the label (C,) that come nearest to an update."""

    input: Tensor  # the input
    label: Tensor  # its soft label
    misfit: float  # what is left of the update, the root mean square over layers of relative errors
    explained: bool  # whether that is nothing but rounding


def _misfit(subject: Subject, share: GradientShare) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of an input (1, …) and a label (C,) that is to be minimised."""
    model = copy.deepcopy(subject.model).double()
    moved = [n for n, _ in model.named_parameters() if n in share and bool(share[n].any())]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in moved)
    training = share.made_by
    if training is None or not moved:
        raise ModelError("nothing of the model has moved, so there is nothing to match")
    program = LocalProgram.of(model, F.cross_entropy, training)
    weights = {n: p.detach() for n, p in model.named_parameters() if n in moved}
    sent = {n: share[n].double() for n in moved}
    sizes = {n: float(sent[n].norm()) * len(moved) ** 0.5 for n in moved}

    def misfit(x: Tensor, label: Tensor) -> Tensor:
        after = program.run(weights, x, label[None])
        parts = [((weights[n] - after[n] - sent[n]) / sizes[n]).square().sum() for n in moved]
        return torch.stack(parts).sum()

    return misfit
