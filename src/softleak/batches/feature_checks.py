"""This module checks recovered features against every fully connected layer before the head.

With ``D`` the gradients at a layer's output, its inputs follow from ``∂L/∂W = Dᵀ Z``, and the
gradients at the output of the layer before are ``(D W) ∘ [Z > 0]``: layer by layer down to what the
fully connected tail of a network reads. The tail, run forwards from there, has to send this share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.feature_fit import FeatureFit, FeatureProblem
from softleak.batches.fully_connected_tail import tail_of
from softleak.batches.resimulate import Resimulation, resimulate
from softleak.batches.sparse_layer import layers_before_head
from softleak.share import GradientShare
from softleak.subject import Subject

OFF_ERRORS = 8.0  # an input of so many standard errors or less is that of a unit that was off


@dataclass(frozen=True, eq=False)
class TailInputs:
    """This holds what entered the fully connected tail of a network.

    Attributes:
        layers: the layers from the one that reads it to the one before the head.
        inputs: (B, n) what that layer read.
        errors: (B, 1) their standard errors.
    """

    layers: tuple[str, ...]
    inputs: Tensor
    errors: Tensor


def resimulate_tail(
    subject: Subject, share: GradientShare, problem: FeatureProblem, fit: FeatureFit, labels: Tensor
) -> Resimulation | None:
    """Compare every gradient of the fully connected tail with what the client would send.

    It is None if the share does not hold the gradient of the weight before the head.
    """
    found = tail_inputs(subject, share, problem, fit)
    if found is None:
        return None
    tail = tail_of(subject, found.layers)
    own = Subject.of(tail, (found.inputs.shape[1],), head=subject.head)
    return resimulate(own, share, found.inputs, labels, errors=found.errors)


def tail_inputs(
    subject: Subject, share: GradientShare, problem: FeatureProblem, fit: FeatureFit
) -> TailInputs | None:
    """Return what the deepest layer read whose inputs the share tells."""
    generator = torch.Generator().manual_seed(0)
    D, moved = fit.behind, problem.moved(generator).solve().behind
    found: TailInputs | None = None
    layers: Sequence[str] = subject.once(layers_before_head)
    for number, name in enumerate(layers):
        if f"{name}.weight" not in share:
            break
        G = share[f"{name}.weight"].double()
        Z = _inputs(D, G)
        relative = share.resolution(f"{name}.weight", G.dtype)
        noise = relative * G.abs() + share.noise(f"{name}.weight")
        other = _inputs(moved, G + noise * torch.randn(G.shape, generator=generator).to(G))
        errors = (other - Z).square().mean(1, keepdim=True).sqrt()
        found = TailInputs(tuple(reversed(layers[: number + 1])), Z, errors)
        W = subject.parameters[f"{name}.weight"].detach().double()
        off = Z.abs() <= OFF_ERRORS * errors
        D, moved = (torch.where(off, 0.0, each @ W) for each in (D, moved))
    return found


def _inputs(D: Tensor, G: Tensor) -> Tensor:
    """Return the inputs (B, n) whose products with ``D`` (B, m) come nearest to ``G`` (m, n)."""
    nearest: Tensor = torch.linalg.lstsq(D.T, G).solution
    return nearest
