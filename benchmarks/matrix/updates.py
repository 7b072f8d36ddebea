"""The columns: what clients send, what the auditor is told of it, and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.adversary.truth import Truth, variants
from benchmarks.matrix.client import Client, Data, Optimiser, State
from softleak import GradientShare
from softleak.audit import Options
from softleak.core.knowledge import Knowledge
from softleak.defenses import GaussianNoise


@dataclass(frozen=True)
class UpdateSettings:
    """How the clients of the matrix train.

    Attributes:
        rate: the learning rate of SGD.
        adam_rate: the learning rate of Adam.
        clip: the largest norm of a clipped gradient.
        small_batch: the number of samples in the smaller batch, and per local step.
        large_batch: the number of samples in the larger batch.
        local_steps: the number of local steps.
    """

    rate: float = 0.1
    adam_rate: float = 1e-3
    clip: float = 0.1
    small_batch: int = 2
    large_batch: int = 16
    local_steps: int = 5


MADE = UpdateSettings()
PLAIN: Optimiser = partial(torch.optim.SGD, lr=MADE.rate)
DECAY: Optimiser = partial(torch.optim.SGD, lr=MADE.rate, weight_decay=5e-4)
HEAVY: Optimiser = partial(torch.optim.SGD, lr=MADE.rate, momentum=0.9)
ADAM: Optimiser = partial(torch.optim.Adam, lr=MADE.adam_rate)
# Labels are recovered and chains inverted. Matching is left out, because it takes too long.
ASKED = Options(seconds=0.0, views=False)
DECLARED = replace(ASKED, knowledge=Knowledge(is_gradient=True))


@dataclass(frozen=True, eq=False)
class Sent:
    """What a client sent, and what is true of it.

    Attributes:
        share: the share as the auditor reads it.
        options: what the auditor is asked and told.
        truth: what is true of the share.
        data: the samples behind it.
    """

    share: GradientShare
    options: Options
    truth: Truth
    data: Data


@dataclass(frozen=True)
class Kind:
    """One kind of update.

    Attributes:
        name: the heading of its column.
        make: the function that makes it; the number is the seed of its data.
    """

    name: str
    make: Callable[[Client, int], Sent]


def _sent(
    client: Client, share: GradientShare, data: Data, options: Options = ASKED, *,
    steps: int = 1, undeclared: bool = False,
) -> Sent:  # fmt: skip
    """Return a share with the truth about it."""
    labels = variants(tuple(data.y), data.x.dtype)
    truth = Truth(labels, samples=len(data.x), steps=steps, undeclared=undeclared)
    return Sent(replace(share, input_shape=client.network.shape), options, truth, data)


def gradient(client: Client, seed: int, size: int = 1) -> Sent:
    """Return the gradient of one sample, or the mean gradient of a batch of known size."""
    data = client.draw(size, seed)
    asked = ASKED if size == 1 else replace(ASKED, knowledge=Knowledge(samples=size))
    return _sent(client, GradientShare(client.gradient(data)), data, asked)


def cast(client: Client, seed: int) -> Sent:
    """Return a gradient in half precision."""
    made = gradient(client, seed)
    return replace(made, share=made.share.map(lambda _, g: g.half()))


def noisy(client: Client, seed: int, std: float) -> Sent:
    """Return a gradient with noise on every entry that is not declared."""
    made = gradient(client, seed)
    noise = GaussianNoise(std, torch.Generator().manual_seed(seed))
    return replace(made, share=noise(made.share))


def delta(client: Client, seed: int, said: bool) -> Sent:
    """Return the weights after a step minus those before, declared or taken for a gradient."""
    data = client.draw(1, seed)
    held = difference(client.before, client.after(PLAIN, [data]))
    if said:
        share = GradientShare.from_delta(held, lr=MADE.rate)
        return _sent(client, share, data, DECLARED)
    return _sent(client, GradientShare(held), data, undeclared=True)


def difference(before: State, after: State) -> State:
    """Return the difference of all arrays of floating-point numbers."""
    return {n: after[n] - before[n] for n in before if before[n].is_floating_point()}


def checkpoints(
    client: Client, seed: int, optimiser: Optimiser = PLAIN, lr: float | None = MADE.rate,
    clip: float | None = None,
) -> Sent:  # fmt: skip
    """Return two checkpoints with one step on one sample between them."""
    data = client.draw(1, seed)
    share = GradientShare.from_update(
        client.before, client.after(optimiser, [data], clip=clip), lr=lr
    )
    asked, wrong = DECLARED, clip is not None
    return _sent(client, share, data, asked, undeclared=wrong)


def momentum(client: Client, seed: int) -> Sent:
    """Return the second step with momentum, which the first one on another sample is part of."""
    first, data = client.draw(1, seed + 100), client.draw(1, seed)
    share = GradientShare.from_update(
        client.before, client.after(HEAVY, [data], earlier=first), lr=MADE.rate
    )
    both = Data(torch.cat([data.x, first.x]), torch.cat([data.y, first.y]))
    return _sent(client, share, both, DECLARED, undeclared=True)


def local_steps(client: Client, seed: int) -> Sent:
    """Return some local steps, each on a batch of its own."""
    batches = [
        client.draw(MADE.small_batch, seed + 100 * number) for number in range(MADE.local_steps)
    ]
    share = GradientShare.from_update(client.before, client.after(PLAIN, batches), lr=MADE.rate)
    data = Data(torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches]))
    asked = DECLARED
    return _sent(client, share, data, asked, undeclared=True)


KINDS: tuple[Kind, ...] = (
    Kind("gradient", gradient),
    Kind("delta", partial(delta, said=True)),
    Kind("delta, not said", partial(delta, said=False)),
    Kind("checkpoints, lr", checkpoints),
    Kind("checkpoints, no lr", partial(checkpoints, lr=None)),
    Kind("clipped", partial(checkpoints, clip=MADE.clip)),
    Kind("decay 5e-4", partial(checkpoints, optimiser=DECAY)),
    Kind("momentum", momentum),
    Kind("Adam", partial(checkpoints, optimiser=ADAM, lr=MADE.adam_rate)),
    Kind("batch of 2", partial(gradient, size=MADE.small_batch)),
    Kind("batch of 16", partial(gradient, size=MADE.large_batch)),
    Kind("5 steps", local_steps),
    Kind("float16", cast),
    Kind("noise 1e-2", partial(noisy, std=1e-2)),
)
