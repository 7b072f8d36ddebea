"""Claims of protection, checked: the noise that is there, and the ε that follows from it.

A mechanism is measured from outside, on steps that are made up: what differs between two sendings
of one step is its noise, and what all have in common is what its clipping leaves. A contradiction
is only named where the numbers show it at a confidence of 99.99 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from softleak.bounds.mechanisms import NOTHING, Mechanism, PrivacyClaim, Step
from softleak.bounds.privacy import sampled_epsilon
from softleak.core.errors import OptionError

LAYOUT: Mapping[str, tuple[int, ...]] = {
    "first.weight": (100, 150), "first.bias": (100,), "head.weight": (10, 100), "head.bias": (10,),
}  # fmt: skip
DRAWS = 24  # how often a step is sent
LONG = 100.0  # the longer step, in units of the clip
SLACK = 1e-3  # by which figures may differ without contradicting one another
CONFIDENCE = 0.9999  # of every interval, so that a nightly check raises no false alarm
QUANTILE = 3.891  # of a normal variable at that confidence
KURTOSIS, KURTOSIS_ERRORS, FEWEST_ENTRIES = 3.0, 6.0, 100  # of Gaussian noise, and its test
Interval = tuple[float, float]


class Contradiction(Enum):
    """What is claimed, and is not so."""

    SENSITIVITY = "the noise was sized for less than the clip: one sample can move a step by that"
    UNCLIPPED = "steps longer than the clip come through"
    ABSENT = "there is no noise, or the same one every time"
    SMALLER = "there is less noise than is claimed"
    UNEVEN = "some tensors carry less noise than is claimed, or none"
    DEPENDENT = "the size of the noise depends on the step, and so tells of it"
    ORDER = "the clip comes after the noise (the first of Flower's mods acts last)"
    SHAPE = "the noise is not Gaussian"
    EPSILON = "a larger ε is spent than is claimed"


class Caution(Enum):
    """What contradicts no claim, and limits what may be concluded."""

    CLIPPED_ALONE = "Clipping alone hides nothing: there is no noise, and none is claimed."
    PREDICTABLE = (
        "The noise is of a generator that is not made for secrecy: whoever learns its state can "
        "take the noise off."
    )
    BOUNDED_ABOVE = (
        "An update alone shows how large its noise is at most, and not that there is any: give the "
        "update before its protection, or the objects that protect it."
    )
    NOT_GAUSSIAN = "The noise is not Gaussian, so that no bound of softleak covers it."
    PARTLY_SENT = "Some entries are exactly zero, without noise: which ones is told exactly."


@dataclass(frozen=True)
class MeasuredNoise:
    """The standard deviation of the noise on each tensor: the interval it lies in."""

    tensors: Mapping[str, Interval]
    gaussian: bool = True
    zeros: float = 0.0  # the part of the entries that was sent as exactly zero

    @classmethod
    def of(cls, off: Step, draws: int, zeros: float) -> MeasuredNoise:
        """Return the noise that deviations (K, N) from the mean of so many draws show."""
        found, fourth = {}, []
        for name, each in off.items():
            freedom = each.shape[1] * max(draws - 1, 1)
            found[name] = _interval(float(each.square().sum()), freedom, len(off))
            if freedom >= FEWEST_ENTRIES and bool(each.any()):
                fourth.append((each / each.square().mean().sqrt()).pow(4).flatten())
        every = torch.cat(fourth) if fourth else torch.full((1,), KURTOSIS)
        error = KURTOSIS_ERRORS * math.sqrt(24 / len(every))
        return cls(found, abs(float(every.mean()) - KURTOSIS) < error, zeros)

    @property
    def weakest(self) -> Interval:
        """Return the interval of the tensor that carries the least."""
        return min(self.tensors.values(), key=lambda interval: interval[1])

    @property
    def most(self) -> float:
        """Return the upper end of the tensor that carries the most."""
        return max(high for _, high in self.tensors.values())


@dataclass(frozen=True)
class ClaimCheck:
    """A claim beside what was measured, and what follows from it."""

    claim: PrivacyClaim  # what was said, by the caller or by the objects
    noise: MeasuredNoise
    length: Interval | None  # of a long step that is sent, without its noise; None: not measured
    sensitivity: float  # what the clip implies, for a sample added or taken away
    epsilon: float | None = None  # what follows at the claimed δ, at least; None without a δ
    replaced: float | None = None  # the same if a sample is replaced: twice the sensitivity
    contradictions: tuple[Contradiction, ...] = ()
    cautions: tuple[Caution, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether nothing contradicts the claim."""
        return not self.contradictions

    @property
    def message(self) -> str:
        """Return the verdict in sentences."""
        from softleak.present.bounds import claim_in_words  # above, where words are made

        return claim_in_words(self)


def check_claim(
    sent: Any,  # noqa: ANN401 - an update, a mechanism, or objects of a framework
    claim: PrivacyClaim = NOTHING,
    *,
    undefended: Step | None = None,
    layout: Mapping[str, tuple[int, ...]] | None = None,
) -> ClaimCheck:
    """Compare what is claimed of a protection with what is there.

    Args:
        sent: the update that was sent, as tensors by name; or what makes it: mods of Flower,
            filters of NVIDIA FLARE, an optimiser of Opacus, or several of these in a list, in
            their order. Such objects are run on steps that are made up.
        claim: what is said, beside what the objects say themselves.
        undefended: the update before its protection, which shows the noise exactly.
        layout: the shapes of a step by name, where objects act on some tensors alone.
    """
    if isinstance(sent, Mapping):
        return _checked_update(sent, claim, undefended)
    made = sent if isinstance(sent, Mechanism) else Mechanism.of(sent, claim)
    return _checked_mechanism(made, claim.beside(made.claim), layout or made.layout or LAYOUT)


def _checked_mechanism(
    made: Mechanism, said: PrivacyClaim, layout: Mapping[str, tuple[int, ...]]
) -> ClaimCheck:
    """Send a short and a long step many times, and judge what comes of them."""
    generator = torch.Generator().manual_seed(0)
    along = {n: torch.randn(s, generator=generator, dtype=torch.double) for n, s in layout.items()}
    whole = torch.cat([t.flatten() for t in along.values()])
    clip = said.clip or 1.0
    (_, quiet), (sent, noise) = (
        _measured(made, {n: length * t / whole.norm() for n, t in along.items()})
        for length in (clip / 2, LONG * clip)
    )
    passed = sent @ whole / whole.norm()
    error = QUANTILE * float(passed.std()) / math.sqrt(DRAWS)
    length = float(passed.mean()) - error, float(passed.mean()) + error
    room, longest = (said.noise or 0.0) * math.sqrt(len(whole)), float(sent.norm(dim=1).max())
    if said.clip and room > 2 * said.clip > 2 * longest * (1 - SLACK) and noise.most:
        return ClaimCheck(said, noise, length, math.inf, contradictions=(Contradiction.ORDER,))
    found = _judged(said, noise, length)
    wrong, unsure = list(found.contradictions), list(found.cautions)
    apart = (max(a, c) > min(b, d) * (1 + SLACK) for (a, b), (c, d) in zip(
        noise.tensors.values(), quiet.tensors.values(), strict=True))  # fmt: skip
    if noise.gaussian and any(apart):
        wrong.append(Contradiction.DEPENDENT)
    if made.spent is not None and said.epsilon is not None:
        found = replace(found, epsilon=made.spent(), replaced=None)
        wrong += [Contradiction.EPSILON] if made.spent() > said.epsilon * (1 + SLACK) else []
    if not made.secret and noise.most:
        unsure.append(Caution.PREDICTABLE)
    return replace(found, contradictions=tuple(wrong), cautions=tuple(unsure))


def _measured(made: Mechanism, step: Step) -> tuple[Tensor, MeasuredNoise]:
    """Return several sendings of one step (K, P), and the noise in which they differ."""
    drawn = []
    for _ in range(DRAWS):
        came = made.send({name: tensor.float() for name, tensor in step.items()})
        drawn.append({n: came.get(n, torch.zeros_like(t)).double() for n, t in step.items()})
    off = {n: torch.stack([one[n].flatten() for one in drawn]) for n in step}
    sent = torch.cat(list(off.values()), 1)
    zeros = float((sent == 0).double().mean())
    return sent, MeasuredNoise.of({n: t - t.mean(0) for n, t in off.items()}, DRAWS, zeros)


def _interval(square: float, freedom: int, tensors: int) -> Interval:
    """Return where the standard deviation lies, of a sum of squares, for all tensors at once."""
    from scipy.special import chdtri  # slow to import

    tail = (1 - CONFIDENCE) / 2 / tensors
    low, high = (math.sqrt(square / float(chdtri(freedom, part))) for part in (tail, 1 - tail))
    return low, high


def _checked_update(sent: Step, said: PrivacyClaim, undefended: Step | None) -> ClaimCheck:
    """Judge an update, of which the noise is known, or bounded: it is no larger than its entries.

    Whatever it is added to, noise makes no tensor shorter than it is itself, in probability
    (Anderson's inequality): the length of a tensor bounds its noise from above.
    """
    names = [name for name in sent if sent[name].is_floating_point() and sent[name].numel()]
    if not names or (undefended is not None and not undefended.keys() >= set(names)):
        raise OptionError("expected an update of tensors, and the same ones of the undefended")
    off = {name: sent[name].double().cpu().reshape(1, -1) for name in names}
    flat = torch.cat(list(off.values()), 1)[0]
    zeros, length, unsure = float((flat == 0).double().mean()), None, []
    if undefended is None:
        found = {n: (0.0, high) for n, (_, high) in MeasuredNoise.of(off, 1, 0).tensors.items()}
        noise = MeasuredNoise(found, True, zeros)
        unsure = [Caution.BOUNDED_ABOVE] if noise.most else []
        if said.noise is not None:  # which lengthens a step by as much as is known
            left = max(float(flat @ flat) - said.noise**2 * len(flat), 0.0)
            error = QUANTILE * said.noise * math.sqrt(2 * said.noise**2 * len(flat) + 4 * left)
            length = math.sqrt(max(left - error, 0.0)), math.sqrt(left + error)
    else:
        own = {name: undefended[name].double().cpu().reshape(1, -1) for name in names}
        whole = torch.cat(list(own.values()), 1)[0]
        part = float(flat @ whole) / max(float(whole @ whole), 1e-300)
        noise = MeasuredNoise.of({n: off[n] - part * own[n] for n in names}, 1, zeros)
        middle, error = part * float(whole.norm()), QUANTILE * noise.most
        length = middle - error, middle + error
    checked = _judged(said, noise, length)
    return replace(checked, cautions=(*checked.cautions, *unsure))


def _judged(said: PrivacyClaim, noise: MeasuredNoise, length: Interval | None) -> ClaimCheck:
    """Return what follows from a claim and a measurement."""
    wrong = list(_contradictions(said, noise, length))
    clip = said.clip if said.clip is not None else math.inf if length is None else length[1]
    clip = math.inf if Contradiction.UNCLIPPED in wrong else clip
    least = noise.weakest[1] if noise.weakest[1] > SLACK * noise.most else 0.0
    size = least if said.noise is None else min(said.noise, least)
    found = ClaimCheck(said, noise, length, clip)
    if said.delta:
        added, replaced = (
            sampled_epsilon(size, factor * clip, said.delta, said.rate, said.rounds)
            for factor in (1, 2)
        )
        found = replace(found, epsilon=added, replaced=replaced)
        if said.epsilon is not None and added > said.epsilon * (1 + SLACK):
            wrong.append(Contradiction.EPSILON)
    return replace(found, contradictions=tuple(wrong), cautions=tuple(_cautions(said, noise)))


def _contradictions(
    said: PrivacyClaim, noise: MeasuredNoise, length: Interval | None
) -> Iterator[Contradiction]:
    sized = math.inf if said.sensitivity is None else said.sensitivity
    if said.clip is not None and sized < said.clip * (1 - SLACK):
        yield Contradiction.SENSITIVITY
    if said.clip is not None and length is not None and length[0] > said.clip * (1 + SLACK):
        yield Contradiction.UNCLIPPED
    promised = said.noise or 0.0
    least = max(SLACK * noise.most, promised * (1 - SLACK))
    few = [name for name, (_, high) in noise.tensors.items() if high < least]
    if (promised or said.epsilon is not None) and noise.most <= SLACK * promised:
        yield Contradiction.ABSENT
    elif (promised or said.epsilon is not None) and few:
        yield Contradiction.SMALLER if len(few) == len(noise.tensors) else Contradiction.UNEVEN
    if promised and not noise.gaussian:
        yield Contradiction.SHAPE


def _cautions(said: PrivacyClaim, noise: MeasuredNoise) -> Iterator[Caution]:
    if not noise.most and not said.noise and said.epsilon is None:
        yield Caution.CLIPPED_ALONE
    if not noise.gaussian and not said.noise:
        yield Caution.NOT_GAUSSIAN
    if noise.zeros > SLACK:
        yield Caution.PARTLY_SENT
