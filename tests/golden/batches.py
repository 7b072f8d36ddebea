"""Batches of 2 to 6 samples, read by ``recover_batch``."""

from __future__ import annotations

from dataclasses import dataclass

import softleak as sl
from tests.golden.networks import images, labels, network
from tests.golden.plain import batch_data


@dataclass(frozen=True)
class Batch:
    """A batch of one network: its size, its labels and what is said of it."""

    net: str
    classes: int
    size: int
    kind: str = "onehot"
    said: bool = True
    family: sl.Family | None = None
    evidence: bool = True
    scale: str | None = None
    gain: float = 1.7
    seed: int = 0


FAMILIES = {"onehot": sl.OneHot(), "smoothed": sl.Smoothed(), "mixed": sl.Mixed()}


def _cases():
    for net, classes in (("mlp", 12), ("mlp_wide", 10), ("conv", 20), ("mlp_tanh", 30)):
        for size in (2, 3, 4):
            yield f"{net}_{size}", Batch(net, classes, size)
    for net in ("mlp_no_bias", "linear_no_bias", "linear", "bn_pool", "mlp_tanh_no_bias"):
        for size in (2, 4):
            yield f"{net}_{size}", Batch(net, 20, size, "smoothed", seed=1)
    for kind, family in FAMILIES.items():
        for size in (2, 3, 5):
            yield f"family_{kind}_{size}", Batch("conv", 24, size, kind, family=family, seed=2)
    for size in (2, 6):
        yield f"unsaid_{size}", Batch("mlp_tanh", 20, size, said=False, seed=5)
        yield f"scaled_{size}", Batch("mlp_tanh", 20, size, scale="unknown", seed=6)
        yield f"head_only_{size}", Batch("mlp_wide", 20, size, evidence=False, seed=7)
    for size in (2, 3):
        yield f"saturated_{size}", Batch("mlp_wide", 10, size, gain=12.0, seed=4)
    yield "any_wide", Batch("mlp_wide", 10, 2, "any", seed=3)
    yield "too_many", Batch("mlp_tanh", 3, 6, seed=8)
    yield "alone", Batch("mlp", 10, 1, seed=9)


CASES = dict(_cases())


def batch(name: str) -> dict:
    """Return what is recovered of every sample of a batch."""
    case = CASES[name]
    model = network(case.net, case.classes, case.seed, case.gain)
    x = images(case.size, 40 + case.seed)
    y = labels(case.kind, case.size, case.classes, 40 + case.seed).float()
    share = sl.capture(model, x, y)
    if case.scale:
        share = share.scaled(0.3)
    found = sl.recover_batch(
        model,
        share,
        size=case.size if case.said else None,
        family=case.family,
        evidence=case.evidence,
        scale=case.scale,
    )
    return batch_data(found)
