"""The attacks of the field on a share of B samples: DLG, iDLG and inverting gradients.

All three search for a batch of inputs whose mean gradient comes nearest to the share. They differ
in the distance, in the optimiser, and in what they do about labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from softleak.factors import head_gradients
from softleak.matching.priors import TotalVariation
from softleak.share import GradientShare
from softleak.subject import Subject

Gradients = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class FieldAnswer:
    """The inputs (n, …) that an attack found, None if there are none, and its labels (m, C)."""

    inputs: Tensor | None
    labels: Tensor


def apparent_labels(subject: Subject, share: GradientShare, size: int) -> Tensor:
    """Return one-hot labels (B, C) of the classes whose rows of the head's gradient sum lowest."""
    lowest = head_gradients(subject.head, [share])[0].sum(1).argsort()[:size]
    return F.one_hot(lowest, subject.head.classes).float()


@dataclass(frozen=True)
class FieldAttack:
    """A published attack that matches gradients, for any number of samples.

    Attributes:
        cosine: whether the distance is the cosine; otherwise it is the squared difference.
        free_labels: whether labels are searched for with the inputs. Otherwise they are the
            ``apparent_labels`` of the share.
        variation: the weight of total variation.
        evaluations: the number of gradients that may be computed.
        rate: the learning rate.
        seed: the seed of the first guess.
    """

    cosine: bool
    free_labels: bool
    variation: float = 0.0
    evaluations: int = 300
    rate: float = 1.0
    seed: int = 0

    def __call__(self, subject: Subject, share: GradientShare, size: int) -> FieldAnswer:
        """Return the inputs and labels that the attack finds for a share of ``size`` samples."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(size, *subject.expected_tensor_shape, generator=generator)
        logits = torch.randn(size, subject.head.classes, generator=generator)
        hard = apparent_labels(subject, share, size)
        sought = [x.requires_grad_(), *([logits.requires_grad_()] if self.free_labels else [])]
        distance = self._distance(subject.model, share)

        def labels() -> Tensor:
            return logits.softmax(-1) if self.free_labels else hard

        with torch.enable_grad():
            self._minimise(sought, lambda: distance(x, labels()))
        return FieldAnswer(x.detach(), labels().detach())

    def _minimise(self, sought: list[Tensor], distance: Callable[[], Tensor]) -> None:
        """Minimise by Adam on the signs of the slope, or by L-BFGS, as the attack's authors do."""
        if self.cosine:
            adam = torch.optim.Adam(sought, lr=self.rate)
            for _ in range(self.evaluations):
                slopes = torch.autograd.grad(distance(), sought)
                for one, slope in zip(sought, slopes, strict=True):
                    one.grad = slope.sign()
                adam.step()
            return
        lbfgs = torch.optim.LBFGS(
            sought, lr=self.rate, max_iter=self.evaluations, max_eval=self.evaluations
        )

        def evaluate() -> Tensor:
            found = distance()
            for one, slope in zip(sought, torch.autograd.grad(found, sought), strict=True):
                one.grad = slope
            return found.detach()

        lbfgs.step(evaluate)  # type: ignore[no-untyped-call]

    def _distance(
        self, model: nn.Module, share: GradientShare
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return how far the gradient of inputs (B, …) with labels (B, C) is from the share."""
        weights = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
        weights = {name: weight for name, weight in weights.items() if name in share}
        sent = [share[name].float() for name in weights]
        penalty = TotalVariation(self.variation)

        def distance(x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(functional_call(model, weights, (x,)), y)
            found = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
            if not self.cosine:
                off = [(g - s).square().sum() for g, s in zip(found, sent, strict=True)]
                return torch.stack(off).sum()
            across, own, other = (
                torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()
                for left, right in ((found, sent), (found, found), (sent, sent))
            )
            return 1 - across / (own * other).sqrt() + penalty(x)

        return distance


DLG = FieldAttack(cosine=False, free_labels=True)
IDLG_ATTACK = FieldAttack(cosine=False, free_labels=False)
INVERTING_GRADIENTS = FieldAttack(cosine=True, free_labels=False, variation=1e-2, rate=0.1)
