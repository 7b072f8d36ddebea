"""The columns: what clients send, how it is read, and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.adversary.truth import Truth, variants
from benchmarks.matrix.client import Client, Data, Optimiser, State
from softleak import GradientShare
from softleak.audit import Options
from softleak.defenses import GaussianNoise

RATE = 0.1
SLOW = 1e-3  # Adam's
NORM = 0.1  # of a clipped gradient
FEW, MANY, LOCAL = 2, 16, 5
PLAIN: Optimiser = partial(torch.optim.SGD, lr=RATE)
DECAY: Optimiser = partial(torch.optim.SGD, lr=RATE, weight_decay=5e-4)
HEAVY: Optimiser = partial(torch.optim.SGD, lr=RATE, momentum=0.9)
ADAM: Optimiser = partial(torch.optim.Adam, lr=SLOW)
# Labels are searched and chains inverted; matching takes time, so that it is left out.
ASKED = Options(seconds=0.0, views=False)


@dataclass(frozen=True, eq=False)
class Sent:
    """A share as the auditor reads it, what is asked, what is true, and the data behind it."""

    share: GradientShare
    options: Options
    truth: Truth
    data: Data


@dataclass(frozen=True)
class Kind:
    """One kind of update: its heading, and how it is made; the number seeds its data."""

    name: str
    make: Callable[[Client, int], Sent]


def _sent(
    client: Client, share: GradientShare, data: Data, options: Options = ASKED, *,
    steps: int = 1, undeclared: bool = False,
) -> Sent:  # fmt: skip
    labels = variants(tuple(data.y), data.x.dtype)
    truth = Truth(labels, samples=len(data.x), steps=steps, undeclared=undeclared)
    return Sent(replace(share, input_shape=client.network.shape), options, truth, data)


def gradient(client: Client, seed: int, size: int = 1) -> Sent:
    """The gradient of one sample, or the mean gradient of a batch whose size is told."""
    data = client.draw(size, seed)
    asked = ASKED if size == 1 else replace(ASKED, samples=size)
    return _sent(client, GradientShare(client.gradient(data)), data, asked)


def cast(client: Client, seed: int) -> Sent:
    """A gradient sent in half precision."""
    made = gradient(client, seed)
    return replace(made, share=made.share.map(lambda _, g: g.half()))


def noisy(client: Client, seed: int, std: float) -> Sent:
    """A gradient with noise on every entry, of which nothing is said."""
    made = gradient(client, seed)
    noise = GaussianNoise(std, torch.Generator().manual_seed(seed))
    return replace(made, share=noise(made.share))


def delta(client: Client, seed: int, said: bool) -> Sent:
    """Weights after a step minus those before, called so or taken for a gradient."""
    data = client.draw(1, seed)
    held = difference(client.before, client.after(PLAIN, [data]))
    if said:
        share = GradientShare.from_delta(held, lr=RATE)
        return _sent(client, share, data, replace(ASKED, declared=True))
    return _sent(client, GradientShare(held), data, undeclared=True)


def difference(before: State, after: State) -> State:
    return {n: after[n] - before[n] for n in before if before[n].is_floating_point()}


def checkpoints(
    client: Client, seed: int, optimiser: Optimiser = PLAIN, lr: float | None = RATE,
    clip: float | None = None,
) -> Sent:  # fmt: skip
    """Two checkpoints with one step on one sample between them."""
    data = client.draw(1, seed)
    share = GradientShare.from_update(
        client.before, client.after(optimiser, [data], clip=clip), lr=lr
    )
    asked, wrong = replace(ASKED, declared=True), clip is not None
    return _sent(client, share, data, asked, undeclared=wrong)


def momentum(client: Client, seed: int) -> Sent:
    """The second step with momentum: the first one, on another sample, is part of it."""
    first, data = client.draw(1, seed + 100), client.draw(1, seed)
    share = GradientShare.from_update(
        client.before, client.after(HEAVY, [data], earlier=first), lr=RATE
    )
    both = Data(torch.cat([data.x, first.x]), torch.cat([data.y, first.y]))
    return _sent(client, share, both, replace(ASKED, declared=True), undeclared=True)


def local_steps(client: Client, seed: int) -> Sent:
    """Some local steps, each on a batch of its own."""
    batches = [client.draw(FEW, seed + 100 * number) for number in range(LOCAL)]
    share = GradientShare.from_update(client.before, client.after(PLAIN, batches), lr=RATE)
    data = Data(torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches]))
    asked = replace(ASKED, declared=True)
    return _sent(client, share, data, asked, undeclared=True)


KINDS: tuple[Kind, ...] = (
    Kind("gradient", gradient),
    Kind("delta", partial(delta, said=True)),
    Kind("delta, not said", partial(delta, said=False)),
    Kind("checkpoints, lr", checkpoints),
    Kind("checkpoints, no lr", partial(checkpoints, lr=None)),
    Kind("clipped", partial(checkpoints, clip=NORM)),
    Kind("decay 5e-4", partial(checkpoints, optimiser=DECAY)),
    Kind("momentum", momentum),
    Kind("Adam", partial(checkpoints, optimiser=ADAM, lr=SLOW)),
    Kind("batch of 2", partial(gradient, size=FEW)),
    Kind("batch of 16", partial(gradient, size=MANY)),
    Kind("5 steps", local_steps),
    Kind("float16", cast),
    Kind("noise 1e-2", partial(noisy, std=1e-2)),
)
