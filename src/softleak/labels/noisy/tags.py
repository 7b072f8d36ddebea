"""How probable each of several labels is behind noise.

    δ/t = u + noise of u        g = δ + s ε        δ = residual((a + ω)/t + b, y)

Given the scalar ``t``, which is integrated over, entries are independent, up to what the noise
``ω`` of the logits has in common; each label is there or not, smoothed like all others, at a rate
that is integrated over as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softleak.core.families import Binary
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy
from softleak.core.results import Recovery, Status, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.composition import never_negative
from softleak.labels.noisy.posterior import GAUSSIAN_FLOOR
from softleak.labels.noisy.recover import (
    ANSWER_HELD,
    ANSWER_SURE,
    BEHIND_NOISE_KNOWN,
    BEHIND_NOISE_SMALLEST_T,
    BEHIND_NOISE_WIDTHS,
    evidence_behind,
)
from softleak.labels.noisy.spectrum import Signal, Spectrum, Typical, features_of_noise

SCALARS, ZOOMS, NODES = 96, 3, 15  # of the grids of τ, and of the error of a logit
NEGLIGIBLE = 20.0  # of the log density, below its highest
SMOOTHINGS = (0.0, 0.02, 0.05, 0.1, 0.2)  # of which none is as probable as all others
RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)  # of labels that are present
DRAWS = 1000
Density = Callable[[Tensor], tuple[Tensor, Tensor]]  # of scalars: log densities, probabilities


@dataclass(frozen=True, eq=False)
class Tags:
    """The posterior of several labels of one sample, as a function of τ.

    Where the signal stands out of the noise, that is ``τ = t`` of its factors. Where it does not,
    only the usual direction ``f`` of features counts, with ``G f = ℓ δ + s ε`` and ``τ = 1/ℓ``.
    """

    head: Head
    loss: BinaryCrossEntropy
    x: Tensor  # (I,) the feature at τ = 1
    u: Tensor  # (C,) the residual at τ = 1, and ``variance`` (C,) that of its entries
    variance: Tensor
    spread: Tensor  # (C,) the standard deviation of each logit at τ = 1
    along: float  # the length of ``x`` in the usual direction
    clear: bool  # whether the signal stands out
    bias: Tensor | None  # (C,) the gradient of the head's bias
    noise: float
    smoothings: Tensor  # (E,)

    @classmethod
    def of(
        cls, head: Head, loss: BinaryCrossEntropy, G: Tensor, bias: Tensor | None, noise: float,
        typical: Typical, signal: Signal, hard: bool, reach: float,
    ) -> Tags | None:  # fmt: skip
        """Return the posterior behind a gradient; None where no direction of features is known."""
        smoothings = torch.tensor((0.0,) if hard else SMOOTHINGS).to(G)
        if signal.known >= BEHIND_NOISE_KNOWN:
            variance = signal.u_covariance.diagonal().clamp_min(GAUSSIAN_FLOOR)
            spread = signal.a_root.norm(dim=1)
            told = signal.x, signal.u, variance, spread, max(signal.along, noise), True
            return cls(head, loss, *told, bias, noise, smoothings)
        usual, rows, inputs = typical.direction, head.W.double().norm(dim=1), G.shape[1]
        sent = G @ usual
        across, blur = typical.across, noise**2
        if math.isinf(typical.doubt):  # then the bias alone tells something, at logits of any sign
            if bias is None:
                return None
            usual, across, blur = 0 * usual, reach, math.inf
        spread = across / inputs**0.5 * rows
        told = usual, sent, torch.full_like(spread, blur), spread, 1.0, False
        return cls(head, loss, *told, bias, noise, smoothings)

    def states(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Return log densities (S, E, Q) and the probability (S, E, Q, C) that a label is there."""
        nodes, weights = (
            torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(NODES)
        )
        a = self.head.logits(self.x[None]) + nodes[:, None] * self.spread  # (H, C)
        z = (a / tau[:, None, None] + self.head.b)[:, None]  # (S, 1, H, C)
        e = self.smoothings[:, None, None]
        t = tau[:, None, None, None]
        present, absent = (self._log(z, y, t, weights.log()) for y in (1 - e, e))
        rate = torch.tensor(RATES).to(tau)[:, None]
        present, absent = present[:, :, None] + rate.log(), absent[:, :, None] + (1 - rate).log()
        either = torch.logaddexp(present, absent)
        return either.sum(-1), (present - either).exp()

    def _log(self, z: Tensor, y: Tensor, tau: Tensor, weights: Tensor) -> Tensor:
        """Return the log likelihood (S, E, C) of every entry being ``y``."""
        delta = self.loss.residual(z, y)
        log = -(self.u - delta / tau).square() / (2 * self.variance) + weights[:, None]
        if self.bias is not None:
            log = log - (self.bias - delta).square() / (2 * self.noise**2)
        return log.logsumexp(2)


def recover_tags(
    subject: Subject, knowledge: Knowledge, share: GradientShare, loss: BinaryCrossEntropy
) -> Recovery | None:
    """Return how probable each label of one sample is; None if no noise is beside it."""
    head, G = subject.head, share[subject.head.weight_name].to(subject.head.W.device).double()
    spectrum = Spectrum.of(G, balanced=False)
    if spectrum.samples > 1 or not spectrum.even or min(G.shape) < 2:
        return None
    if knowledge.of(share).scale == "unknown":
        why = because(Why.NOISE_AT_ANY_SCALE, noise=spectrum.noise)
        return Recovery(Status.GUESS, why, noise=spectrum.noise, loss=loss)
    typical = subject.once(Typical.of)
    signal = Signal.of(head, G, spectrum.noise, typical, balanced=False)
    told = head.has_bias and head.bias_name in share and not knowledge.head_only
    bias = share[head.bias_name].to(G) if told else None
    hard = isinstance(knowledge.family, Binary)
    features = subject.once(features_of_noise)
    reach = float(features.norm(dim=1).mean()) if len(features) else G.shape[1] ** 0.5
    tags = Tags.of(head, loss, G, bias, spectrum.noise, typical, signal, hard, reach)
    if tags is None:
        why = because(Why.TAGS_HIDDEN, noise=spectrum.noise)
        return Recovery(Status.GUESS, why, noise=spectrum.noise, loss=loss)
    others = evidence_behind(subject, knowledge, share, signal, spectrum)
    used = tags.clear and not knowledge.head_only
    pieces = [one for name, one in (others if used else ()) if name != head.bias_name]
    prior_e = torch.tensor([0.0] if hard else [math.log(0.5)] + [math.log(0.125)] * 4).to(G)

    def density(tau: Tensor) -> tuple[Tensor, Tensor]:
        log, present = tags.states(tau)
        prior = typical.log_prior(tau.new_tensor(tags.along), spectrum.noise * tags.clear, tau)
        for piece in pieces:
            prior = prior + piece(tau)
        return log + prior[:, None, None] + prior_e[:, None], present

    most = loss.slope(len(G)) * len(G) ** 0.5
    ends = (BEHIND_NOISE_SMALLEST_T * most, 2 * most)
    if not tags.clear:
        widest = 2.0 if math.isinf(typical.doubt) else math.exp(BEHIND_NOISE_WIDTHS * typical.doubt)
        ends = (math.exp(-typical.length) / widest, math.exp(-typical.length) * widest)
    one_sign = subject.once(never_negative) or not tags.clear
    signs = (1.0,) if one_sign else (1.0, -1.0)
    parts = [_integrated(density, sign, ends, G) for sign in signs]
    log, present, tau = (torch.cat(one) for one in zip(*parts, strict=True))
    return _answer(tags, log, present, tau)


def _integrated(
    density: Density, sign: float, ends: tuple[float, float], like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log masses, probabilities and scalars of one sign, on a grid around what has mass."""
    low, high = (math.log(one) for one in ends)
    for _ in range(ZOOMS):
        steps = torch.linspace(low, high, SCALARS, dtype=torch.double).to(like)
        log, present = density(sign * steps.exp())
        top = log.flatten(1).amax(1)
        some = (top > top.max() - NEGLIGIBLE).nonzero()[:, 0]
        first, last = max(int(some[0]) - 1, 0), min(int(some[-1]) + 1, SCALARS - 1)
        low, high = float(steps[first]), float(steps[last])
    return log + math.log(float(steps[1] - steps[0])), present, sign * steps.exp()


def _answer(tags: Tags, log: Tensor, present: Tensor, tau: Tensor) -> Recovery:
    """Return what the posterior amounts to: the likeliest labels, and how probable each is."""
    smoothings, noise = tags.smoothings, tags.noise
    weight = (log - log.max()).exp()
    weight = weight / weight.sum()
    probable = (weight[..., None] * present).flatten(0, 2).sum(0)
    has = probable > 0.5
    e = smoothings[int(weight.sum((0, 2)).argmax())]
    label = torch.where(has, 1 - e, e).to(probable)
    named = torch.where(has, present, 1 - present).log().sum(-1).exp()
    confidence = min(float((weight * named).sum()), 1.0)
    generator = torch.Generator().manual_seed(0)
    which = torch.multinomial(weight.flatten().cpu(), DRAWS, replacement=True, generator=generator)
    chance = torch.rand(DRAWS, len(label), generator=generator, dtype=torch.double).to(label)
    drawn = present.flatten(0, 2)[which.to(label.device)] > chance
    own = smoothings[(which // len(RATES)) % len(smoothings)].to(label)[:, None]
    far = (torch.where(drawn, 1 - own, own) - label).abs().sum(1)
    sure = torch.stack([probable >= ANSWER_HELD, probable <= 1 - ANSWER_HELD])
    spread = smoothings[weight.sum((0, 2)) > 1 - ANSWER_HELD]
    low, high = (float(spread.min()), float(spread.max())) if len(spread) else (0.0, 0.2)
    least = torch.where(sure[0], 1 - high, low)
    interval = torch.stack([least, torch.where(sure[1], high, 1 - low)])
    middle = float(tau[int(weight.sum((1, 2)).argmax())])
    claims = bool((probable >= ANSWER_SURE).any()) or confidence >= ANSWER_SURE
    return Recovery(
        Status.PROBABLE if claims else Status.GUESS,
        because(Why.TAGS_BEHIND_NOISE, noise=noise, confidence=confidence), label=label,
        feature=tags.x / middle, scalar=middle, error=float(far.quantile(ANSWER_HELD)),
        noise=noise, confidence=confidence, interval=interval, presence=probable, loss=tags.loss,
    )  # fmt: skip
