"""The ways in which a share comes to be: losses, batches, optimisers, scales, precisions, noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.adversary.client import Client, Sample
from benchmarks.adversary.losses import (
    BRIER,
    CROSS_ENTROPY,
    FOCAL,
    GENERALISED,
    QUARTER,
    SMOOTHING,
    TEMPERED,
    WEIGHTED,
    Loss,
)
from benchmarks.adversary.truth import Made, Truth, variants
from benchmarks.adversary.updates import UPDATES, Update
from softleak import GradientShare
from softleak.core.share import Scale
from softleak.core.vocabulary import Precision
from softleak.defenses import Clip, Defense, GaussianNoise, Int8, Prune, Sign

CROSS_ENTROPIES = (CROSS_ENTROPY, QUARTER)

Maker = Callable[[Client, Sample, Sample], Made]


@dataclass(frozen=True)
class Way:
    """One way to make a share of a sample; a second sample is there for those that need two.

    ``size`` is the number of samples in a batch. ``noisy`` shares are solved one at a time by the
    library, so the suite asks for them one at a time.
    """

    name: str
    group: str
    make: Maker
    size: int = 1
    noisy: bool = False


def by_loss(client: Client, sample: Sample, _: Sample, loss: Loss = CROSS_ENTROPY) -> Made:
    """The gradient of a loss, undeclared unless it is the cross-entropy of some label."""
    plain = loss is CROSS_ENTROPY or loss is SMOOTHING
    found = [loss.reading(z, y) for z, y in zip(sample.z, sample.y, strict=True)]
    readings = tuple(reading for reading in found if reading is not None)
    labels = readings if plain else sample.labels
    truth = Truth(
        variants(labels, client.dtype), readings, len(sample.x), undeclared=not plain,
        clean=plain and len(sample.x) == 1, other_loss=loss not in (*CROSS_ENTROPIES, SMOOTHING),
    )  # fmt: skip
    return Made(client.share(sample, loss), truth)


def by_decay(client: Client, sample: Sample, _: Sample, decay: float) -> Made:
    """Cross-entropy and a penalty on the weights, as part of the loss."""
    share = client.share(sample, decay=decay)
    return Made(share, Truth(variants(sample.labels, client.dtype)))


def by_update(client: Client, sample: Sample, other: Sample, update: Update) -> Made:
    """The difference of two checkpoints."""
    earlier = other if update.remembers else None
    before, after = client.update(sample, update.optimiser, update.steps, earlier)
    share = replace(update.read(before, after), input_shape=tuple(sample.x.shape[1:]))
    labels = (*sample.labels, *(other.labels if update.remembers else ()))
    truth = Truth(
        variants(labels, client.dtype), samples=2 if update.remembers else 1,
        steps=update.steps, undeclared=update.undeclared or update.steps > 1, clean=update.clean,
        negative=update.negative,
    )  # fmt: skip
    return Made(share, truth)


def by_factor(
    client: Client, sample: Sample, _: Sample, factor: float, scale: Scale | None
) -> Made:
    """The gradient times a factor, which the share declares or not."""
    share = replace(client.share(sample).scaled(factor), scale=scale)
    truth = Truth(
        variants(sample.labels, client.dtype), undeclared=scale is None,
        clean=scale is not None, negative=factor < 0,
    )  # fmt: skip
    return Made(share, truth)


def by_clipping(client: Client, sample: Sample, _: Sample, scale: Scale | None) -> Made:
    """The gradient clipped to a tenth of its length."""
    share = client.share(sample)
    clipped = Clip(max(share.norm() / 10, 1e-30))(share)
    truth = Truth(
        variants(sample.labels, client.dtype), undeclared=scale is None, clean=scale is not None
    )
    return Made(replace(clipped, scale=scale), truth)


def by_autocast(client: Client, sample: Sample, _: Sample, said: Precision | None) -> Made:
    """Mixed precision with bfloat16, declared or not."""
    with torch.autocast("cpu", torch.bfloat16):
        share = client.share(sample)
    truth = Truth(variants(sample.labels, client.dtype), clean=said is not None)
    return Made(replace(share, precision=said), truth)


def by_cast(client: Client, sample: Sample, _: Sample, dtype: torch.dtype) -> Made:
    """Sent in another number format."""
    share = client.share(sample).map(lambda _, g: g.to(dtype))
    return Made(share, Truth(variants(sample.labels, client.dtype), clean=True))


def by_defence(client: Client, sample: Sample, _: Sample, defence: Defense) -> Made:
    """Altered before it was sent, without a word about it."""
    return Made(defence(client.share(sample)), Truth(variants(sample.labels, client.dtype)))


def by_noise(client: Client, sample: Sample, _: Sample, std: float) -> Made:
    """Gaussian noise on every entry."""
    noise = GaussianNoise(std, torch.Generator().manual_seed(client.seed))
    return by_defence(client, sample, sample, noise)


def by_row(client: Client, sample: Sample, _: Sample) -> Made:
    """Noise on one row of every matrix, as the paper's code adds it."""
    generator = torch.Generator().manual_seed(client.seed)

    def spoil(share: GradientShare) -> GradientShare:
        def change(_: str, g: torch.Tensor) -> torch.Tensor:
            changed = g.clone()
            if g.ndim == 2:
                noise = torch.randn(g.shape[1], generator=generator).to(g.dtype)
                changed[0] += 0.1 * g.abs().max() * noise
            return changed

        return share.map(change)

    return by_defence(client, sample, sample, spoil)


def _loss(name: str, loss: Loss, group: str = "other losses") -> Way:
    return Way(name, group, partial(by_loss, loss=loss))


def _update(update: Update) -> Way:
    rough = not (update.clean or update.undeclared)
    return Way(update.name, "updates", partial(by_update, update=update), noisy=rough)


def _factor(name: str, factor: float, scale: Scale | None) -> Way:
    return Way(name, "scales", partial(by_factor, factor=factor, scale=scale))


def _defence(name: str, defence: Defense) -> Way:
    return Way(name, "noise and compression", partial(by_defence, defence=defence), noisy=True)


WAYS: tuple[Way, ...] = (
    _loss("cross-entropy", CROSS_ENTROPY, "plain"),
    _loss("label smoothing in the loss", SMOOTHING, "plain"),
    _loss("cross-entropy / 4", QUARTER),
    _loss("class weights", WEIGHTED),
    _loss("focal", FOCAL),
    _loss("generalised cross-entropy", GENERALISED),
    _loss("Brier", BRIER),
    _loss("temperature in the loss", TEMPERED),
    Way("decay 1e-5 in the loss", "other losses", partial(by_decay, decay=1e-5)),
    Way("decay 5e-4 in the loss", "other losses", partial(by_decay, decay=5e-4)),
    *(Way(f"batch of {n}", "batches", by_loss, n, noisy=True) for n in (2, 3, 8, 32)),
    *(_update(update) for update in UPDATES),
    *(_factor(f"times {k:.0e}, declared", k, "unknown") for k in (1e-6, 1e-3, 1e3, 1e6)),
    _factor("times 0.1", 0.1, None),
    _factor("times 100", 100.0, None),
    _factor("negative", -1.0, None),
    Way("clipped, declared", "scales", partial(by_clipping, scale="unknown")),
    Way("clipped", "scales", partial(by_clipping, scale=None)),
    Way("autocast", "precision", partial(by_autocast, said=None), noisy=True),
    Way("autocast, declared", "precision", partial(by_autocast, said="bfloat16"), noisy=True),
    Way("sent in float16", "precision", partial(by_cast, dtype=torch.float16)),
    Way("sent in bfloat16", "precision", partial(by_cast, dtype=torch.bfloat16)),
    Way("sent in float64", "precision", partial(by_cast, dtype=torch.float64)),
    *(Way(f"noise {std:.0e}", "noise and compression", partial(by_noise, std=std), noisy=True)
      for std in (1e-4, 1e-2)),
    Way("noise on one row", "noise and compression", by_row, noisy=True),
    _defence("pruned", Prune(0.3)),
    _defence("signs", Sign()),
    _defence("eight bits", Int8()),
)  # fmt: skip
