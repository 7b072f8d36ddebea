"""The features that a model makes of random inputs: what is known of one before any gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.forward import forward_batch, forward_one, random_input, row_of_logits
from softleak.core.head import Head
from softleak.core.input_spec import Inputs
from softleak.core.subject import Subject
from softleak.numerics.recorder import recorded_inputs, watched

# How the usual features of a model are found, and how far they are believed.
FEATURES_INPUTS = 16  # the number of random inputs that the model is run on
FEATURES_DOUBT = 0.5  # standard deviation of log length: real inputs against random ones
FEATURES_OPPOSED = math.log(1e-3)  # the log prior of a feature that points away from the usual ones
FEATURES_SEED = 0  # the seed of the random inputs
FEATURES_SAME = 1e-3  # relative: a feature counts as the same in a batch and alone


@dataclass(frozen=True, eq=False)
class Typical:
    """The usual direction of a model's features, and their usual length along it."""

    direction: Tensor  # (I,) the usual direction, a unit vector
    across: float = 1.0  # the usual length across that direction, relative to the length along it
    length: float = 0.0  # the mean logarithm of the length along it
    doubt: float = math.inf  # its standard deviation; infinite if every length is equally likely

    def log_prior(self, along: Tensor, error: float, tau: Tensor) -> Tensor:
        """Return the log density (S,) of scalars τ (S,) with respect to d log τ.

        The feature ``(σ/τ) v`` has the length ``along / τ`` in the usual direction, where ``along``
        is that of the gradient and has an ``error``.
        """
        if math.isinf(self.doubt):
            return torch.zeros_like(tau)
        variance = self.doubt**2 + (error / along).square()
        far = along.log() - tau.abs().log() - self.length
        log = -(far.square() / variance + variance.log()) / 2
        return torch.where(tau > 0, log, log + FEATURES_OPPOSED)

    @classmethod
    def unknown(cls, head: Head) -> Typical:
        """Assume only that entries tend to have one sign, as an activation leaves them."""
        inputs = head.W.shape[1]
        return cls(torch.full((inputs,), inputs**-0.5, dtype=torch.double, device=head.W.device))

    @classmethod
    def of(cls, subject: Subject) -> Typical:
        """Return what a model makes of noise, fine and coarse; unknown if it cannot be run."""
        head = subject.head
        features = subject.once(features_of_noise)
        if not len(features):
            return cls.unknown(head)
        mean = features.mean(0)
        along = features @ mean / mean.norm()
        if not float(mean.norm()) > 0 or not bool((along > 0).all()):
            return cls.unknown(head)
        across = float((features.square().sum(-1) / along.square() - 1).clamp_min(0).mean())
        doubt = math.hypot(FEATURES_DOUBT, float(along.log().std()))
        return cls(mean / mean.norm(), math.sqrt(across), float(along.log().mean()), doubt)


def features_of_noise(subject: Subject) -> Tensor:
    """Return the features (n, I), in float64, of random inputs; none if no input is known."""
    shape = subject.input_shape
    if shape is None:
        return torch.zeros(0, subject.head.W.shape[1], dtype=torch.double)
    generator = torch.Generator().manual_seed(FEATURES_SEED)
    drawn = [random_input(shape, index, generator) for index in range(FEATURES_INPUTS)]
    return features_of(subject, drawn)


def features_of(subject: Subject, inputs: Sequence[Inputs]) -> Tensor:
    """Return the features (n, I), in float64, that the model makes of these inputs."""
    model, head = subject.model, subject.head
    devices = [head.W.device] if head.W.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        together = _features_together(model, head, inputs)
        if together is not None:
            last = _feature_alone(model, head, inputs[-1])
            if float((together[-1] - last).norm()) <= FEATURES_SAME * float(last.norm()):
                return together
        return torch.stack([_feature_alone(model, head, one) for one in inputs])


def _feature_alone(model: nn.Module, head: Head, x: Inputs) -> Tensor:
    """Return the feature (I,) of one input, in float64."""
    # An input may be tried with and without a batch dimension: only the last feature counts.
    entered: list[tuple[Tensor, Tensor]] = []
    with watched(
        {head.name: model.get_submodule(head.name)},
        after=lambda _, given, output: entered.append((given[0].detach(), output.detach())),
    ):
        logits, _ = forward_one(model, x)
    return row_of_logits(*entered[-1], logits)[0][0].double()


def _features_together(model: nn.Module, head: Head, inputs: Sequence[Inputs]) -> Tensor | None:
    """Return the features (n, I) of one run on all inputs; None where that is not possible.

    A feature may depend on the others of its batch, as behind BatchNorm in train mode, so that the
    caller has to compare one of them with that of an input alone.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if len(tensors) < len(inputs):
        return None
    try:
        with recorded_inputs(model, head.name) as entered:
            forward_batch(model, torch.stack(tensors))
    except ModelError:
        return None
    features = entered[head.name][-1].detach()
    return features.double() if features.shape == (len(tensors), head.W.shape[1]) else None
