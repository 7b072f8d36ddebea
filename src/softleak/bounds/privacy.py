"""What differential privacy by Gaussian noise leaves to an attack.

Noise of ``z`` times the clipping norm separates an update with a sample from one without it by
``μ = 1/z`` standard deviations. Whoever would guess a secret of the sample with probability ``κ``
is then right with probability ``1 − f(κ)`` at most, where ``f`` is the trade-off curve of all
rounds: ``Φ(Φ⁻¹(κ) + √R μ)`` if every round uses the sample. One pair (ε, δ) says less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from softleak.core.errors import OptionError, import_extra

MOST_EPSILON = 1e12  # where the search for ε ends
BISECTIONS = 200
PRIORS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.5)


def largest_success(
    prior: float, noise_multiplier: float, *, rate: float = 1.0, rounds: int = 1
) -> float:
    """Return the most that any attack on a whole training is right about a secret of one sample.

    Args:
        prior: ``κ``, how often the likeliest value of the secret is the right one.
        noise_multiplier: the noise on the sum of clipped gradients, over the clipping norm.
        rate: the probability with which a round uses the sample; below 1 needs the extra ``dp``.
        rounds: the number of rounds, all of which the attacker sees.
    """
    return success_curve((prior,), noise_multiplier, rate=rate, rounds=rounds)[0]


def success_curve(
    priors: Sequence[float] = PRIORS, noise_multiplier: float = 1.0, *, rate: float = 1.0,
    rounds: int = 1,
) -> tuple[float, ...]:  # fmt: skip
    """Return ``largest_success`` at each prior, which costs hardly more than at one."""
    if not all(0 < prior <= 1 for prior in priors):
        raise OptionError(f"expected priors above 0 and up to 1, got {priors!r}")
    if not 0 < rate <= 1 or rounds < 1 or not noise_multiplier >= 0:
        raise OptionError(
            "expected a rate above 0 and up to 1, at least one round and a noise multiplier of 0 "
            f"or more, got {rate!r}, {rounds!r} and {noise_multiplier!r}"
        )
    if not noise_multiplier:
        return (1.0,) * len(priors)
    if rate == 1:
        return tuple(gaussian_success(one, math.sqrt(rounds) / noise_multiplier) for one in priors)
    riskcal = import_extra("riskcal.accountants", "sampled rounds need riskcal", "dp")
    accountant = riskcal.CTDAccountant()
    accountant.history = [(noise_multiplier, rate, rounds)]
    missed = np.atleast_1d(accountant.get_beta(alpha=np.asarray(priors, dtype=float)))
    return tuple(float(1 - one) for one in missed)


def gaussian_success(prior: float, mu: float) -> float:
    """Return ``Φ(Φ⁻¹(κ) + μ)``."""
    from scipy.special import ndtr, ndtri  # slow to import

    return float(ndtr(ndtri(prior) + mu))


GRID = 2**0.25  # between one public noise multiplier and the next


def least_multiplier(chance: float, target: float, rounds: int = 1) -> float:
    """Return the least noise multiplier of a public grid, the powers of ``2^¼``, for a promise.

    Behind noise of that many clipping norms no attack on so many updates is right about anything
    with a probability above ``target``, if a guess is right with ``chance`` at most. The updates
    are shortened as a whole, so that all that a client may send lies around zero within the norm.
    """
    from scipy.special import ndtri  # slow to import

    if not 0 < chance < target < 1 or rounds < 1:
        raise OptionError(
            "expected a chance below a target, both between 0 and 1, and at least one round, got "
            f"{chance!r}, {target!r} and {rounds!r}"
        )
    exact = math.sqrt(rounds) / float(ndtri(target) - ndtri(chance))
    return float(GRID ** math.ceil(math.log(exact, GRID)))


def delta_of(epsilon: float, mu: float) -> float:
    """Return the δ that Gaussian noise leaves at an ε, at ``μ = sensitivity / noise``."""
    from scipy.special import log_ndtr, ndtr  # slow to import

    lost = math.exp(min(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)), 0.0))
    return float(ndtr(mu / 2 - epsilon / mu)) - lost


def epsilon_of(noise: float, sensitivity: float, delta: float) -> float:
    """Return the smallest ε at ``δ`` of Gaussian noise on a query of this sensitivity, exactly.

    It is infinite without noise. The classical ``√(2 ln(1.25/δ))`` is larger up to ε = 1, and no
    guarantee beyond.
    """
    if not 0 < delta < 1:
        raise OptionError(f"expected a δ between 0 and 1, got {delta!r}")
    if not noise or not 0 < sensitivity < math.inf:
        return math.inf if sensitivity else 0.0
    mu, low, high = sensitivity / noise, 0.0, 1.0
    if delta_of(0.0, mu) <= delta:
        return 0.0
    while delta_of(high, mu) > delta and high < MOST_EPSILON:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle, mu) <= delta else (middle, high)
    return high


def sampled_epsilon(
    noise: float, sensitivity: float, delta: float, rate: float = 1.0, rounds: int = 1
) -> float:
    """Return ``epsilon_of`` after some rounds, each of which uses the sample with a probability.

    It is exact if every round uses it, and else that of Opacus's accountant (extra ``dp``).
    """
    if rate == 1 or not noise or not math.isfinite(sensitivity):
        return epsilon_of(noise, math.sqrt(rounds) * sensitivity, delta)
    accountants = import_extra("opacus.accountants", "sampled rounds need Opacus", "dp")
    accountant = accountants.PRVAccountant()
    accountant.history = [(noise / sensitivity, rate, rounds)]
    return float(accountant.get_epsilon(delta))
