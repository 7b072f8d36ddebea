"""DP-SGD by Opacus, which clips every sample's gradient and adds noise to the sum.

Needs the extra ``dp``: ``pip install '.[dp]'`` in a checkout of softleak.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import ModelError, OptionError, import_extra
from softleak.core.share import GradientShare
from softleak.defenses.defense import Clip, Composed, GaussianNoise, positive

MULTIPLIERS = (1e-4, 1e4)  # the noise multipliers that are looked at
MULTIPLIER_PRECISION = 1e-4  # the relative precision to which one is found


@dataclass(frozen=True)
class DPSGD:
    """One client's side of DP-SGD. It is not a function of a share, as it clips per sample.

    Noise of ``noise_multiplier × max_norm`` is added to the sum of the clipped gradients.
    """

    noise_multiplier: float
    max_norm: float
    generator: torch.Generator
    steps: int = 1
    sample_rate: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        positive(self.noise_multiplier, "the noise multiplier")
        positive(self.max_norm, "the largest norm")
        if not 0 < self.sample_rate <= 1 or not 0 < self.delta < 1 or self.steps < 1:
            raise OptionError(
                "expected a sample rate above 0 and up to 1, a delta between 0 and 1 and at least "
                f"one step, got {self.sample_rate!r}, {self.delta!r} and {self.steps!r}"
            )

    @property
    def std(self) -> float:
        """Return the standard deviation of the noise on the sum of gradients."""
        return self.noise_multiplier * self.max_norm

    def capture(self, model: nn.Module, x: Tensor, y: Tensor) -> GradientShare:
        """Return the mean of what a batch ``x`` (B, …) with soft labels ``y`` (B, C) sends."""
        opacus = _opacus()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks and of generators that are not for secrecy
            trained = copy.deepcopy(model).train()
            problems = opacus.validators.ModuleValidator.validate(trained, strict=False)
            if problems:
                raise ModelError(f"Opacus cannot clip this model sample by sample: {problems[0]}")
            private = opacus.GradSampleModule(trained)
            optimiser = opacus.optimizers.DPOptimizer(
                torch.optim.SGD(private.parameters(), lr=1.0),
                noise_multiplier=self.noise_multiplier,
                max_grad_norm=self.max_norm,
                expected_batch_size=len(x),
                generator=self.generator,
            )
            F.cross_entropy(private(x), y.to(x.dtype)).backward()  # type: ignore[no-untyped-call]
            optimiser.pre_step()
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        sent = zip(names, (p.grad for p in private.parameters() if p.requires_grad), strict=True)
        return GradientShare({n: g for n, g in sent if g is not None}, tuple(x.shape[1:]))

    def epsilon(self) -> float:
        """Return ε at ``delta``, by Opacus's accountant of Rényi differential privacy."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the best order being the smallest or largest
            accountant = _opacus().accountants.RDPAccountant()
            accountant.history = [(self.noise_multiplier, self.sample_rate, self.steps)]
            return float(accountant.get_epsilon(self.delta))


@dataclass(frozen=True)
class PrivateTraining:
    """How one person's sample is used in a whole training, for which ε is counted."""

    # The norm to which each sample's gradient is clipped; None for the update's own.
    clip: float | None = None
    rate: float = 1.0  # the probability with which a step uses the sample
    steps: int = 1  # the number of steps; 1 counts the ε of this update alone
    delta: float = 1e-5  # the δ at which ε is counted

    def dpsgd(self, noise_multiplier: float, clip: float = 1.0) -> DPSGD:
        """Return the client's side at a noise multiplier."""
        generator = torch.Generator()
        return DPSGD(noise_multiplier, clip, generator, self.steps, self.rate, self.delta)

    def noise_multiplier(self, epsilon: float) -> float:
        """Return the smallest noise multiplier that spends at most this ε, to a part in 10⁴."""
        positive(epsilon, "ε")
        return _multiplier(self, epsilon)

    def defense(self, epsilon: float, norm: float, seed: int) -> Composed:
        """Return DP-SGD of the gradient of one sample: clipping, then seeded noise on every entry.

        It spends ``epsilon`` over the whole training; ``norm`` is clipped to if ``clip`` is None.
        """
        clip = norm if self.clip is None else self.clip
        return Composed((Clip(clip), GaussianNoise(self.noise_multiplier(epsilon) * clip, seed)))


@cache
def _multiplier(training: PrivateTraining, epsilon: float) -> float:
    low, high = MULTIPLIERS
    while high / low > 1 + MULTIPLIER_PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if training.dpsgd(middle).epsilon() <= epsilon else (middle, high)
    return high


def _opacus() -> ModuleType:
    import_extra("opacus.validators", "DP-SGD needs Opacus", "dp")
    return import_module("opacus")
