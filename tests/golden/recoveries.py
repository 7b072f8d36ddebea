"""Label recoveries: chunks of shares of one network, recovered at once by ``recover_labels``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import softleak as sl
from softleak.defenses import Cast, Clip, GaussianNoise, Int8, LaplaceNoise, Prune, Sign
from tests.golden.networks import KINDS, images, labels, network
from tests.golden.plain import listed, recovery_data


@dataclass(frozen=True)
class Chunk:
    """Shares of one network: how labels are drawn, how shares are changed, what is assumed."""

    net: str
    classes: int
    change: str = "none"
    kinds: tuple[str, ...] = KINDS
    each: int = 5  # draws of each kind
    family: sl.Family | None = None
    evidence: bool = True
    scale: str | None = None
    dtype: torch.dtype = torch.float32
    seed: int = 0
    gain: float = 1.7


ONE, SMOOTH, MIX = ("onehot",), ("onehot", "smoothed"), ("onehot", "mixed")
CHUNKS = {
    # evidence from other layers, any label
    "mlp": Chunk("mlp", 10),
    "mlp_deep_3": Chunk("mlp_deep", 3),
    "mlp_tanh_100": Chunk("mlp_tanh", 100),
    "mlp_no_bias": Chunk("mlp_no_bias", 10),
    "conv": Chunk("conv", 10),
    "conv_sigmoid_30": Chunk("conv_sigmoid", 30),
    "bn_pool": Chunk("bn_pool", 10),
    "layernorm": Chunk("layernorm", 5),
    "vit": Chunk("vit", 10),
    "residual": Chunk("residual", 5),
    "linear": Chunk("linear", 10),
    "mlp_double": Chunk("mlp", 10, dtype=torch.float64),
    # the head alone
    "head_only": Chunk("mlp", 10, evidence=False),
    "head_only_no_bias": Chunk("linear_no_bias", 10, evidence=False),
    "head_only_100": Chunk("mlp_tanh", 100, evidence=False),
    "head_only_3": Chunk("mlp_tanh", 3, evidence=False),
    "head_only_double": Chunk("conv_tanh", 30, evidence=False, dtype=torch.float64),
    "head_onehot": Chunk("mlp_tanh", 10, kinds=ONE, each=25, family=sl.OneHot(), evidence=False),
    "head_smoothed": Chunk(
        "bn_pool", 10, kinds=SMOOTH, each=12, family=sl.Smoothed(), evidence=False
    ),
    "head_mixed": Chunk("conv", 10, kinds=MIX, each=12, family=sl.Mixed(), evidence=False),
    "head_mixed_of_3": Chunk("mlp_wide", 8, kinds=MIX, each=10, family=sl.Mixed(3), evidence=False),
    "head_smoothed_mixed": Chunk("mlp", 12, family=sl.SmoothedMixed(), evidence=False),
    "head_any": Chunk("mlp", 6, family=sl.AnyLabel(), evidence=False),
    "wrong_family": Chunk("mlp_tanh", 10, kinds=("any", "mixed"), each=10, family=sl.OneHot()),
    # scales
    "unknown_scale": Chunk("mlp", 10, "scaled", scale="unknown"),
    "unknown_scale_head": Chunk("mlp_wide", 20, "scaled", scale="unknown", evidence=False),
    "scaled_unsaid": Chunk("mlp_tanh", 10, "scaled"),
    "scaled_called_known": Chunk("mlp", 10, "scaled", scale="known", evidence=False),
    "clipped": Chunk("conv", 10, "clip", scale="unknown"),
    "delta": Chunk("mlp", 10, "delta"),
    "step": Chunk("mlp", 10, "step"),
    # what a client does to a gradient
    "noise_small": Chunk("mlp", 10, "noise_1e-5", each=4),
    "noise": Chunk("mlp_wide", 10, "noise_1e-3", each=4),
    "noise_large": Chunk("mlp", 5, "noise_1e-1", each=3),
    "noise_onehot": Chunk("mlp", 10, "noise_1e-3", kinds=ONE, each=12, family=sl.OneHot()),
    "laplace": Chunk("mlp", 10, "laplace", each=3),
    "half": Chunk("mlp_tanh", 10, "half"),
    "bfloat16": Chunk("mlp", 10, "bfloat16", each=3),
    "int8": Chunk("mlp", 10, "int8", each=2),
    "pruned": Chunk("mlp", 10, "prune", each=3),
    "signs": Chunk("mlp", 10, "sign", each=3),
    "decay": Chunk("mlp", 10, "decay"),
    "no_head_bias": Chunk("mlp", 10, "no_head_bias"),
    # several samples, none, and what cannot be read
    "two_samples": Chunk("mlp", 10, "two"),
    "three_samples": Chunk("conv", 10, "three", each=3),
    "zero": Chunk("mlp", 5, "zero", kinds=ONE, each=5),
    "refused": Chunk("mlp", 5, "nan", kinds=ONE, each=5),
    "refused_shape": Chunk("mlp", 5, "shape", kinds=ONE, each=5),
    # local training
    "steps_of_a_head": Chunk("linear", 8, "train_lr=0.1,steps=3", each=2),
    "steps": Chunk("mlp_tanh", 6, "train_lr=0.05,steps=3", each=1),
    "momentum": Chunk("linear", 6, "train_lr=0.05,steps=4,momentum=0.9", each=2),
    "one_step": Chunk("mlp", 6, "train_lr=0.1,steps=1", each=2),
    "adam": Chunk("linear", 6, "train_lr=0.01,steps=1,optimiser=adam", each=1),
    "decay_step": Chunk("mlp", 6, "train_lr=0.1,steps=1,weight_decay=0.01", each=2),
}
DEFENSES = {
    "clip": lambda _: Clip(0.01),
    "noise_1e-5": lambda seed: GaussianNoise(1e-5, seed),
    "noise_1e-3": lambda seed: GaussianNoise(1e-3, seed),
    "noise_1e-1": lambda seed: GaussianNoise(1e-1, seed),
    "laplace": lambda seed: LaplaceNoise(1e-3, seed),
    "half": lambda _: Cast(torch.float16),
    "bfloat16": lambda _: Cast(torch.bfloat16),
    "int8": lambda _: Int8(),
    "prune": lambda _: Prune(0.7),
    "sign": lambda _: Sign(),
}


def recoveries(name: str) -> list[dict]:
    """Return what is recovered from every share of a chunk."""
    chunk = CHUNKS[name]
    model = network(chunk.net, chunk.classes, chunk.seed, chunk.gain, chunk.dtype)
    shares = list(_shares(chunk, model))
    found = sl.recover_labels(
        model, shares, family=chunk.family, evidence=chunk.evidence, scale=chunk.scale
    )
    return listed(recovery_data(one) for one in found)


def _shares(chunk: Chunk, model):
    for k, kind in enumerate(chunk.kinds):
        seed = 100 * chunk.seed + 10 * k
        own = labels(kind, chunk.each, chunk.classes, seed)
        for i in range(chunk.each):
            more = {"two": 2, "three": 3}.get(chunk.change, 1)
            x = images(chunk.each + 3, seed, chunk.dtype)[i : i + more]
            y = own[[(i + j) % chunk.each for j in range(more)]].to(chunk.dtype)
            yield _share(chunk.change, model, x, y if more > 1 else y[0], i + 50 * k)


def _share(change: str, model, x: Tensor, y: Tensor, number: int) -> sl.GradientShare:
    """Return the share of one client after a change."""
    if change.startswith("train_"):
        return sl.Client.parse(change.removeprefix("train_")).share(model, x, y[None])
    share = sl.capture(model, x, y)
    if change in DEFENSES:
        return DEFENSES[change](number)(share)
    return _changed(change, model, share, number)


def _changed(change: str, model, share: sl.GradientShare, number: int) -> sl.GradientShare:
    weights = dict(model.named_parameters())
    *_, head_weight, head_bias = share if len(share) > 1 else ("", *share)
    if change == "scaled":
        return share.scaled(0.37 + 0.2 * (number % 5))
    if change == "delta":
        return sl.GradientShare.from_delta({n: -0.1 * g for n, g in share.items()})
    if change == "step":
        after = {n: w.detach() - 0.1 * share[n] for n, w in weights.items()}
        return sl.GradientShare.from_update(model.state_dict(), after, lr=0.1)
    if change == "decay":
        return share.map(lambda n, g: g + 1e-3 * weights[n].detach())
    if change == "no_head_bias":
        return share.without(head_bias)
    if change == "zero":
        return share.map(lambda _, g: torch.zeros_like(g))
    if change == "nan":
        return share if number % 2 else share.map(lambda _, g: g * float("nan"))
    if change == "shape":
        return share if number % 2 else replace(
            share, gradients={**share, head_weight: share[head_weight][:-1]}
        )  # fmt: skip
    return share
