"""Proved hidden: how often the best of all attacks names a secret behind Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from softleak.bounds.gaussians import Mixture, Successes
from softleak.bounds.means import Candidates, Secret
from softleak.core.client import ArrayLike, Client
from softleak.core.errors import OptionError

TRIALS = 20_000  # which leave an interval of at most two points in a hundred
GAIN = 0.1  # of what an update could add to a guess: what still counts as hidden by default
COSINE = 0.9  # between the mean of many clients' updates and its like without noise, by default
Noise = float | Mapping[str, float]


@dataclass(frozen=True)
class HiddenProof:
    """How often the best possible attack names a secret, known or not."""

    success: float  # the probability that it is right, an estimate
    interval: tuple[float, float]  # where that probability lies, with a confidence of 99 %
    chance: float  # how often a guess without the update is right
    target: float  # the probability below which the secret counts as hidden
    what: Secret  # the kind of secret: "label", "input" or "word"
    candidates: int  # how many values it may have
    noise: float  # the noise's standard deviation; of several by parameter, the smallest
    uniform: bool  # whether all candidates are equally likely
    samples: int  # the samples of the client, all but one of which are known
    trials: int  # the number of simulated attacks

    @property
    def hidden(self) -> bool:
        """Return whether no attack is right more often than the target, at 99 % confidence."""
        return self.interval[1] <= self.target

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what the proof rests on, in sentences."""
        from softleak.present.bounds import proof_rests_on  # above, where words are made

        return tuple(proof_rests_on(self))

    @property
    def message(self) -> str:
        """Return the verdict in a sentence."""
        from softleak.present.bounds import proof_in_words  # above, where words are made

        return proof_in_words(self)


def prove_hidden(
    model: nn.Module,
    x: ArrayLike,
    y: ArrayLike,
    *,
    client: Client = Client(),  # noqa: B008 - frozen
    noise: Noise,
    what: Secret = "label",
    prior: Tensor | Sequence[float] | None = None,
    candidates: Any = None,  # noqa: ANN401 - classes, labels, inputs or words
    **settings: Any,  # noqa: ANN401
) -> HiddenProof:
    """Bound how often any attack names a secret of a client behind Gaussian noise.

    The attacker knows everything but the secret. The bound is attained, by maximum likelihood, so
    a larger noise is needed if it is too high, and not a better proof.

    Args:
        model: the network, in the mode the client uses.
        x: the client's inputs, one or a batch, as ``Client.share`` takes them.
        y: their labels. That of the sample in question is not used if it is the secret.
        client: how the client makes what it sends. If it trains, it is run for every candidate.
        noise: the standard deviation of the noise on every entry of what is sent; a mapping by
            parameter name gives each its own, and none to those it lacks.
        what: "label", "input" or "word".
        prior: the probability of each candidate; they are equally likely by default.
        candidates: class indices or labels (N, C), images (N, …), or word ids (N,). By default
            all classes, or under "bce" all combinations of up to twelve labels.
        settings: ``target``, the success below which the secret counts as hidden; ``sample`` and
            ``place``, where in the batch and in the text it is; ``defense``, applied before the
            noise, such as ``Clip(1.0)``; ``trials`` and ``seed`` of the simulated attacks.
    """
    trials, seed, target = _drawn(settings)
    least, units = _sizes(model, noise)
    found = Candidates.of(model, x, y, client, candidates, what=what, units=units, **settings)
    mixture = found.means().mixture(prior)
    best = mixture.best_attack(1.0 if units else least, trials, seed)
    return _proof(found, mixture, best, least, target)


def _drawn(settings: dict[str, Any]) -> tuple[int, int, float | None]:
    return settings.pop("trials", TRIALS), settings.pop("seed", 0), settings.pop("target", None)


def _proof(
    found: Candidates, mixture: Mixture, best: Successes, noise: float, target: float | None
) -> HiddenProof:
    limit = mixture.chance + GAIN * (1 - mixture.chance) if target is None else target
    uniform = float(mixture.prior.min()) == mixture.chance
    return HiddenProof(
        best.rate, best.interval, mixture.chance, limit, found.what, len(mixture.prior), noise,
        uniform, len(found.labels), best.trials,
    )  # fmt: skip


@dataclass(frozen=True)
class Hiding:
    """The weakest noise that is proved to hide a secret, and what it leaves of the update."""

    proof: HiddenProof | None  # behind that noise; None if no noise hides the secret so far
    declared: HiddenProof | None  # behind the noise that the update is said to carry, if any
    cosine: float  # that between the update behind the weakest noise and the update itself
    wanted: float  # the cosine that is asked for
    clients: int  # how many clients' mean keeps it, if each adds that noise to an update like this

    @property
    def affordable(self) -> bool:
        """Return whether a single update behind that noise is worth sending."""
        return self.proof is not None and self.cosine >= self.wanted


def weakest_hiding(
    model: nn.Module, x: ArrayLike, y: ArrayLike, *, client: Client = Client(),  # noqa: B008
    target: float, cosine: float = COSINE, noise: float = 0.0, **settings: Any,  # noqa: ANN401
) -> Hiding:  # fmt: skip
    """Return the weakest noise behind which no attack is right more often than ``target``.

    Args:
        model: the network; with ``x``, ``y``, ``client`` and settings as ``prove_hidden`` has them.
        x: the client's inputs.
        y: their labels.
        client: how the client makes what it sends.
        target: the success below which the secret counts as hidden.
        cosine: what is asked of the mean of many updates behind that noise.
        noise: the noise that the update is said to carry, for a bound at that too.
        settings: as those of ``prove_hidden``, with ``what``, ``prior`` and ``candidates``.
    """
    if not 0 < target < 1 or not 0 < cosine < 1:
        raise OptionError(f"expected a success and a cosine in (0, 1), got {target}, {cosine}")
    prior, (trials, seed, _) = settings.pop("prior", None), _drawn(settings)
    found = Candidates.of(model, x, y, client, settings.pop("candidates", None), **settings)
    mixture = found.means().mixture(prior)
    own = client.share(model, x, y)
    entries, norm = sum(g.numel() for g in own.values()), own.norm()

    def at(size: float) -> HiddenProof:
        return _proof(found, mixture, mixture.best_attack(size, trials, seed), size, target)

    weakest = mixture.weakest_noise(target, trials, seed)
    spread = 0.0 if weakest is None else weakest**2 * entries / norm**2 if norm else math.inf
    alone = 1 / math.sqrt(1 + spread) if weakest is not None else 0.0
    enough = spread * cosine**2 / (1 - cosine**2)
    clients = max(math.ceil(enough), 1) if math.isfinite(enough) else 0
    declared = at(noise) if noise else None
    return Hiding(None if weakest is None else at(weakest), declared, alone, cosine, clients)


def _sizes(model: nn.Module, noise: Noise) -> tuple[float, Mapping[str, float]]:
    """Return the smallest noise, and that of each parameter if they differ and all have some.

    A parameter without noise tells what it tells exactly: the bound is then that of no noise.
    """
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    each = {n: noise.get(n, 0.0) if isinstance(noise, Mapping) else noise for n in trained}
    if not each or not all(size >= 0 for size in each.values()):
        raise OptionError(f"noise should be a standard deviation, 0 or more, got {noise!r}")
    least = min(each.values())
    return least, each if isinstance(noise, Mapping) and least else {}
