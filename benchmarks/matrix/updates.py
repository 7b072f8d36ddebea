"""The kinds of update: what clients send, what the auditor is told, and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.matrix import changes, losses
from benchmarks.matrix.client import POSITIVES, Client, Data, Optimiser, Schedule, State
from softleak import Client as Training
from softleak import GradientShare
from softleak.audit import Options
from softleak.core.knowledge import Knowledge


@dataclass(frozen=True)
class UpdateSettings:
    """How the clients of the matrix train.

    Attributes:
        rate: the learning rate of one step of SGD.
        adam_rate: the learning rate of AdamW, whose decay is 0.01.
        slow_rate: the first learning rate of five steps with momentum.
        period: the steps in which the cosine would fall to zero.
        steps: the number of local steps.
        small_batch: the number of samples per local step of AdamW.
        micro_batches: the samples whose gradients are summed.
        clip: the largest norm of a clipped gradient.
        factor: what an unknown scale multiplies by.
        amp: the scale of mixed precision that nobody undid.
        noise: the standard deviation of the noise that is there.
        declared: that of the noise that is declared and not there.
    """

    rate: float = 0.1
    adam_rate: float = 1e-3
    slow_rate: float = 1e-2
    period: int = 20
    steps: int = 5
    small_batch: int = 2
    micro_batches: int = 4
    clip: float = 0.1
    factor: float = 0.37
    amp: float = 65536.0
    noise: float = 1e-2
    declared: float = 10.0


MADE = UpdateSettings()
PLAIN: Optimiser = partial(torch.optim.SGD, lr=MADE.rate)
HEAVY: Optimiser = partial(torch.optim.SGD, lr=MADE.slow_rate, momentum=0.9)
ADAMW: Optimiser = partial(torch.optim.AdamW, lr=MADE.adam_rate, weight_decay=0.01)
COSINE: Schedule = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=MADE.period)
# Gradients are not matched: it takes too long. All else is tried.
ASKED = Options(seconds=0.0, views=False)
DECLARED = replace(ASKED, knowledge=Knowledge(is_gradient=True))


@dataclass(frozen=True, eq=False)
class Sent:
    """What a client sent, and what is true of it.

    Attributes:
        share: the share as the auditor reads it.
        options: what the auditor is asked and told.
        data: the samples behind it, with the labels that the loss was given.
        features: what entered the last layer (B, I) when the client computed.
        labels: the labels (B, C) as the cross-entropy means them; those of the data, or smoothed.
        sound: whether all that the auditor assumes or is told is true.
        noisy: whether there is noise that looks like noise.
        steps: the number of local steps.
    """

    share: GradientShare
    options: Options
    data: Data
    features: torch.Tensor
    labels: torch.Tensor
    sound: bool = False
    noisy: bool = False
    steps: int = 1


@dataclass(frozen=True)
class Kind:
    """One kind of update.

    Attributes:
        name: the heading of its row.
        make: the function that makes it; the number is the seed of its data.
        what: what the client does and what the auditor is told, in a phrase.
    """

    name: str
    make: Callable[[Client, int], Sent]
    what: str


def _sent(
    client: Client, share: GradientShare, data: Data, options: Options = ASKED, *,
    sound: bool = False, noisy: bool = False,
) -> Sent:  # fmt: skip
    share = replace(share, input_shape=client.layout)
    return Sent(share, options, data, client.features(data), data.y, sound, noisy)


def _said(client: Client, gradients: State, data: Data, **facts: bool) -> Sent:
    """Return gradients that the auditor is told to be such (``--kind gradient``)."""
    return _sent(client, GradientShare(gradients, scale="known"), data, DECLARED, **facts)


def gradient(
    client: Client, seed: int, loss: losses.LossFunction = losses.cross_entropy,
    positives: int = 1, sound: bool = False,
) -> Sent:  # fmt: skip
    """Return the gradient of one sample under some loss."""
    data = client.draw(1, seed, positives)
    return _said(client, client.gradient(data, loss), data, sound=sound)


def smoothed(client: Client, seed: int) -> Sent:
    """Return the gradient of one sample whose label is smoothed."""
    made = gradient(client, seed, losses.smoothed, sound=True)
    part = losses.SMOOTHING
    return replace(made, labels=(1 - part) * made.labels + part / client.classes)


def batch(client: Client, seed: int, size: int) -> Sent:
    """Return the mean gradient of a batch whose size is told (``--samples``)."""
    data = client.draw(size, seed)
    told = replace(DECLARED, knowledge=Knowledge(is_gradient=True, samples=size))
    share = GradientShare(client.gradient(data), scale="known")
    return _sent(client, share, data, told, sound=True)


def changed(
    client: Client, seed: int, change: Callable[[State, torch.Generator], State],
    told: bool = True, noisy: bool = False,
) -> Sent:  # fmt: skip
    """Return a gradient that was changed, which nobody says."""
    data = client.draw(1, seed)
    held = change(client.gradient(data), torch.Generator().manual_seed(seed))
    if told:
        return _said(client, held, data, noisy=noisy)
    return _sent(client, GradientShare(held), data, noisy=noisy)


def scaled(client: Client, seed: int, amp: float = 1.0, clip: float | None = None) -> Sent:
    """Return a gradient of another scale, in a file of which nothing is said."""
    data = client.draw(1, seed)
    return _sent(client, GradientShare(client.gradient(data, factor=amp, clip=clip)), data)


def accumulated(client: Client, seed: int) -> Sent:
    """Return the sum of the gradients of some micro-batches, of which nothing is said."""
    data = client.draw(MADE.micro_batches, seed)
    micro = (Data(*pair) for pair in zip(data.x[:, None], data.y[:, None], strict=True))
    parts = [client.gradient(one) for one in micro]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    return _sent(client, GradientShare(total), data)  # type: ignore[arg-type]


def wrong_noise(client: Client, seed: int) -> Sent:
    """Return a gradient whose declared noise is not there (``--noise 10``)."""
    made = gradient(client, seed)
    told = Knowledge(is_gradient=True, noise=MADE.declared)
    return replace(made, options=replace(DECLARED, knowledge=told))


def strange(client: Client, seed: int, dropping: bool) -> Sent:
    """Return the gradient of a model that drops entries, or has the weights of another seed."""
    data = client.draw(1, seed)
    model = None if dropping else client.other
    made = _said(client, client.gradient(data, dropping=dropping, model=model), data)
    return replace(made, features=client.features(data, dropping=dropping, model=model))


def checkpoints(client: Client, seed: int, swapped: bool = False) -> Sent:
    """Return two checkpoints with one plain step between them, and the learning rate."""
    data = client.draw(1, seed)
    ends = [client.before, client.after(PLAIN, [data])]
    before, after = reversed(ends) if swapped else ends
    share = GradientShare.from_update(before, after, lr=MADE.rate)
    return _sent(client, share, data, DECLARED, sound=not swapped)


def difference(client: Client, seed: int) -> Sent:
    """Return the weights after a step minus those before, of which nothing is said."""
    data = client.draw(1, seed)
    before, after = client.before, client.after(PLAIN, [data])
    held = {n: after[n] - before[n] for n in before if before[n].is_floating_point()}
    return _sent(client, GradientShare(held), data)


def adamw(client: Client, seed: int, steps: int) -> Sent:
    """Return checkpoints around steps of AdamW that are taken for one of SGD."""
    size = 1 if steps == 1 else MADE.small_batch
    batches = [client.draw(size, seed + 100 * number) for number in range(steps)]
    share = GradientShare.from_update(
        client.before, client.after(ADAMW, batches), lr=MADE.adam_rate
    )
    data = batches[0]
    for more in batches[1:]:
        data = data.and_also(more)
    return replace(_sent(client, share, data, DECLARED), steps=steps)


def scheduled(client: Client, seed: int) -> Sent:
    """Return five steps on one sample whose rate falls, told at the mean rate."""
    data = client.draw(1, seed)
    optimiser = HEAVY([torch.nn.Parameter(torch.zeros(1))])
    schedule, rates = COSINE(optimiser), []
    for _ in range(MADE.steps):
        rates.append(float(schedule.get_last_lr()[0]))
        optimiser.step()
        schedule.step()
    told = Training(lr=sum(rates) / len(rates), steps=MADE.steps, momentum=0.9)
    after = client.after(HEAVY, [data] * MADE.steps, COSINE)
    share = GradientShare.from_update(client.before, after, client=told)
    return replace(_sent(client, share, data, DECLARED), steps=MADE.steps)


def _by(change: Callable[..., torch.Tensor], random: bool = False) -> Callable[..., State]:
    """Return a change of every gradient by itself."""
    return lambda held, source: {n: change(g, source) if random else change(g)
                                 for n, g in held.items()}  # fmt: skip


def _noise(held: State, source: torch.Generator) -> State:
    return {name: changes.noisy(g, MADE.noise, source) for name, g in held.items()}


def _factor(held: State, _: torch.Generator) -> State:
    return {name: MADE.factor * g for name, g in held.items()}


KINDS: tuple[Kind, ...] = (
    Kind("gradient", partial(gradient, sound=True), "one sample, one class"),
    Kind("smoothed", smoothed, "one sample, label smoothing 0.1"),
    Kind("batch of 2", partial(batch, size=2), "its size is told"),
    Kind("batch of 8", partial(batch, size=8), "its size is told"),
    Kind("batch of 32", partial(batch, size=32), "its size is told"),
    Kind("checkpoints", checkpoints, "one step of SGD between two checkpoints, its rate told"),
    Kind("difference", difference, "after minus before, in a file of which nothing is said"),
    Kind("swapped", partial(checkpoints, swapped=True), "before and after exchanged, rate told"),
    Kind("scaled", partial(changed, change=_factor, told=False), "times 0.37, nothing said"),
    Kind("clipped", partial(scaled, clip=MADE.clip), "to a norm of 0.1, nothing said"),
    Kind("layer-wise", partial(changed, change=lambda held, _: changes.clipped_by_layer(held)),
         "every layer clipped to the median norm"),
    Kind("AMP 65536", partial(scaled, amp=MADE.amp), "a `GradScaler` not undone, nothing said"),
    Kind("BCE", partial(gradient, loss=losses.binary, positives=POSITIVES), "three labels"),
    Kind("MSE", partial(gradient, loss=losses.squared), "of the logits from a one-hot label"),
    Kind("focal", partial(gradient, loss=losses.focal), "exponent 2"),
    Kind("hinge", partial(gradient, loss=losses.hinge), "`MultiMarginLoss`"),
    Kind("temperature", partial(gradient, loss=losses.tempered), "logits divided by 3 in the loss"),
    Kind("pruned", partial(changed, change=_by(changes.pruned)), "30 % of every layer kept"),
    Kind("top-k 1 %", partial(changed, change=lambda held, _: changes.largest(held)),
         "1 % of the update kept"),
    Kind("int8", partial(changed, change=_by(changes.int8)), "rounded to the nearest level"),
    Kind("stochastic", partial(changed, change=_by(changes.stochastic, random=True)),
         "8 bits, rounded up or down by chance"),
    Kind("bfloat16", partial(changed, change=_by(lambda g: g.bfloat16())), "the gradient cast"),
    Kind("signSGD", partial(changed, change=_by(torch.sign)), "signs alone"),
    Kind("noise", partial(changed, change=_noise, noisy=True), "Gaussian, 0.01, not declared"),
    Kind("wrong noise", wrong_noise, "noise of 10 declared, none there"),
    Kind("other weights", partial(strange, dropping=False), "computed at another seed's weights"),
    Kind("dropout", partial(strange, dropping=True), "active, audited in eval mode"),
    Kind("AdamW", partial(adamw, steps=1), "one step, decay 0.01, told as a step of SGD"),
    Kind("AdamW, 5", partial(adamw, steps=MADE.steps), "five steps on batches of two"),
    Kind("cosine, 5", scheduled, "momentum 0.9, the mean rate told as a constant one"),
    Kind("accumulated", accumulated, "four gradients summed, nothing said"),
)  # fmt: skip
