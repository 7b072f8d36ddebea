"""Proved hidden: how often the best of all attacks names a secret behind Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from softleak.bounds.means import Candidates, Secret
from softleak.core.client import ArrayLike, Client
from softleak.core.errors import OptionError

TRIALS = 20_000  # which leave an interval of at most two points in a hundred
GAIN = 0.1  # of what an update could add to a guess: what still counts as hidden by default
Noise = float | Mapping[str, float]


@dataclass(frozen=True)
class HiddenProof:
    """How often the best possible attack names a secret, known or not.

    Attributes:
        success: the probability that it is right, an estimate.
        interval: where that probability lies, with a confidence of 99 %.
        chance: how often a guess without the update is right.
        target: the probability below which the secret counts as hidden.
        what: the kind of secret: "label", "input" or "word".
        candidates: how many values it may have.
        noise: the noise's standard deviation; of several by parameter, the smallest.
        uniform: whether all candidates are equally likely.
        samples: the samples of the client, all but one of which are known.
        trials: the number of simulated attacks.
    """

    success: float
    interval: tuple[float, float]
    chance: float
    target: float
    what: Secret
    candidates: int
    noise: float
    uniform: bool
    samples: int
    trials: int

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
    trials, seed = settings.pop("trials", TRIALS), settings.pop("seed", 0)
    target = settings.pop("target", None)
    least, units = _sizes(model, noise)
    found = Candidates.of(model, x, y, client, candidates, what=what, units=units, **settings)
    mixture = found.means().mixture(prior)
    best = mixture.best_attack(1.0 if units else least, trials, seed)
    limit = mixture.chance + GAIN * (1 - mixture.chance) if target is None else target
    uniform = float(mixture.prior.min()) == mixture.chance
    return HiddenProof(
        best.rate, best.interval, mixture.chance, limit, what, len(mixture.prior), least,
        uniform, len(found.labels), trials,
    )  # fmt: skip


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
