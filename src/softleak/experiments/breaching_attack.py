"""The attack of the framework breaching on a share of B samples, where breaching imports."""

from __future__ import annotations

import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from softleak.data import Normalisation
from softleak.experiments.field_attacks import FieldAnswer, apparent_labels
from softleak.experiments.frameworks import breaching
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class BreachingAttack:
    """The attack ``invertinggradients`` of breaching, by its own settings except for the steps.

    Attributes:
        normalisation: the normalisation of inputs, by which breaching keeps pixels in [0, 1].
        evaluations: the number of gradients that may be computed. Its authors take 24,000.
        seed: the seed of the first guess.
    """

    normalisation: Normalisation
    evaluations: int = 300
    seed: int = 0

    def __call__(self, subject: Subject, share: GradientShare, size: int) -> FieldAnswer:
        """Return the inputs that breaching finds for a share of every parameter.

        breaching recovers labels only from a head with a bias, so it is told the classes that the
        other attacks read off the share.
        """
        labels = apparent_labels(subject, share, size)
        framework, steps = breaching(), f"optim.max_iterations={self.evaluations}"
        with (
            torch.random.fork_rng(devices=()), torch.enable_grad(), redirect_stdout(StringIO()),
            warnings.catch_warnings(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            torch.manual_seed(self.seed)
            settings = framework.get_attack_config("invertinggradients", overrides=[steps])
            attacker = framework.attacks.prepare_attack(
                subject.model, nn.CrossEntropyLoss(), settings
            )
            found, _ = attacker.reconstruct(
                [self._sent(subject)], [_received(subject, share, labels)], {}
            )
        return FieldAnswer(found["data"].detach(), labels)

    def _sent(self, subject: Subject) -> dict[str, object]:
        """Return what the server sends to clients, in breaching's form."""
        about = SimpleNamespace(
            shape=subject.expected_tensor_shape, modality="vision",
            mean=self.normalisation.mean, std=self.normalisation.std,
        )  # fmt: skip
        parameters, buffers = [*subject.model.parameters()], [*subject.model.buffers()]
        return {"parameters": parameters, "buffers": buffers, "metadata": about}


def _received(subject: Subject, share: GradientShare, labels: Tensor) -> dict[str, object]:
    """Return what the server receives, in breaching's form, with labels (B, C) read off it."""
    gradients = [share[name].float() for name, _ in subject.model.named_parameters()]
    about = {
        "num_data_points": len(labels), "labels": labels.argmax(1), "local_hyperparams": None,
    }  # fmt: skip
    return {"gradients": gradients, "buffers": None, "metadata": about}
