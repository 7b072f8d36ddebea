"""How far another label may be from the true one and still lead to exactly the same weights.

A client trains its head for one step and sends float32 weights. For labels that are more or less
smoothed than the true one, a feature is sought whose step gives every one of these weights. Where
there is one, no attack can tell the two labels apart.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

import softleak as sl
from benchmarks.local_training.cells import EXACT, drawn, network, share_of

DISTANCES = tuple(2.0 ** (k / 4) * 1e-5 for k in range(40))  # L1, to both sides
ROUNDS = 30  # times that feature and prediction are fitted to each other


def limits(name: str, kind: str, lr: float, shares: int, seed: int) -> str:
    """Return in words how far labels with the same weights lie apart."""
    subject, _ = network(name, True)
    client, head = sl.Client(lr=lr), subject.head
    before = head.W.detach()
    found = []
    for one in drawn(subject, kind, shares, seed):
        update = share_of(subject, client, one)[head.weight_name].double()
        after = (before.double() - update).float()
        y, away = others(one.y.double())
        unlike = differing(before, head.b.double(), after, lr, y, one.feature[0].double())
        found.append(float(torch.where(unlike == 0, away, 0.0).max()))
    beyond = [f"{i}: {far:.1e}" for i, far in enumerate(found) if far > EXACT]
    return (
        f"{name} {kind} lr={lr:g}, one step, {shares} shares: labels with exactly the same weights "
        f"are up to {statistics.median(found):.1e} away (median), {max(found):.1e} (most); beyond "
        f"{EXACT:g} in {len(beyond)} ({', '.join(beyond) or 'none'})"
    )


def others(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels (D, C) that are more and less smoothed, and their L1 distances (D,) from it."""
    flat = torch.full_like(y, 1 / len(y))
    away = torch.tensor(DISTANCES, dtype=y.dtype)
    part = torch.cat([away, -away]) / (y - flat).abs().sum()
    found = torch.lerp(y, flat, part[:, None])
    return found, torch.where(found.amin(-1) >= 0, away.repeat(2), 0.0)


def differing(
    before: Tensor, bias: Tensor, after: Tensor, lr: float, y: Tensor, x: Tensor
) -> Tensor:
    """Return how many of the weights (C, I) come out otherwise, for labels (D, C), at best.

    A rounded weight is an interval for every entry of the feature, and C of them have to meet. The
    step is computed in float64, and its weights are then rounded.
    """
    weight, sent, far = before.double(), after.double(), torch.full_like(after, torch.inf)
    low = weight - (sent + torch.nextafter(after, far).double()) / 2
    high = weight - (sent + torch.nextafter(after, -far).double()) / 2
    x = x.expand(len(y), -1)
    for _ in range(ROUNDS):
        step = lr * (torch.softmax(x @ weight.T + bias, -1) - y)[..., None]
        ends = torch.stack([low / step, high / step])
        x = (ends.amin(0).amax(1) + ends.amax(0).amin(1)) / 2
    delta = torch.softmax(x @ weight.T + bias, -1) - y
    made = (weight - lr * delta[..., None] * x[:, None]).float()
    return (made != after).flatten(1).sum(1)
