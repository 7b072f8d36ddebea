"""Inputs that are computed by ``invert`` or solved for by ``reconstruct`` with ``GaussNewton``."""

from __future__ import annotations

import softleak as sl
from softleak.matching import GaussNewton
from tests.golden.networks import images, labels, network
from tests.golden.plain import magnitude, number, numbers

SOLVED = {
    f"{net}_{seed}": (net, classes, kind, seed)
    for net, classes, kind, seeds in (
        ("conv_gelu", 6, "mixed", (0,)),
        ("residual_relu", 5, "onehot", (0,)),
        ("mlp_gelu_deep", 6, "mixed", (0,)),
    )
    for seed in seeds
}
INVERTED = {
    f"{net}_{kind}": (net, 8, kind, number)
    for number, (net, kind) in enumerate(
        (
            ("mlp", "onehot"), ("mlp", "any"), ("mlp_deep", "mixed"), ("mlp_tanh", "smoothed"),
            ("mlp_no_bias", "onehot"), ("conv", "onehot"), ("conv_tanh", "any"),
            ("conv_leaky", "mixed"), ("conv_sigmoid", "smoothed"), ("linear", "onehot"),
            ("bn_pool", "onehot"), ("vit", "onehot"), ("mlp_leaky", "any"),
            ("mlp_wide", "smoothed"), ("mlp_silu", "mixed"), ("mlp_sigmoid", "any"),
            ("conv_tanh", "onehot"), ("conv_leaky", "any"), ("linear", "any"),
            ("conv_sigmoid", "onehot"), ("mlp_deep", "smoothed"),
        )
    )
}  # fmt: skip


def _made(net: str, classes: int, kind: str, seed: int):
    model = network(net, classes, seed + 20)
    share = sl.capture(
        model, images(1, 60 + seed)[0], labels(kind, 1, classes, 60 + seed)[0].float()
    )
    return model, share, sl.recover_label(model, share)


def solved(name: str) -> dict:
    """Return what Gauss–Newton finds, and whether it is proved."""
    model, share, recovery = _made(*SOLVED[name])
    found = sl.reconstruct(model, share, recovery, optimiser=GaussNewton(), restarts=2)
    certificate = found.certificate
    proved = {"input": numbers(found.input), "error": magnitude(found.error)}
    return {
        "label_status": recovery.status.name,
        "status": found.status.name,
        **(proved if found.proved else {}),
        "undetermined": None if certificate is None else certificate.undetermined,
        "explained": None if certificate is None else certificate.explained,
    }


def inverted(name: str) -> dict:
    """Return the input that is computed layer by layer or patch by patch."""
    model, share, recovery = _made(*INVERTED[name])
    try:
        found = sl.invert(model, share, recovery)
    except sl.SoftleakError as refusal:
        return {"label_status": recovery.status.name, "refused": type(refusal).__name__}
    return {
        "label_status": recovery.status.name,
        "determined": found.determined,
        "sufficient": found.sufficient,
        "input": numbers(found.input) if found.determined else None,
        "error": magnitude(found.error),
        "psnr_predicted": number(found.psnr_predicted),
        "layers": [[one.name, one.rows, one.unknowns, one.determined] for one in found.layers],
    }
