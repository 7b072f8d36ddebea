"""A naive attack on every sample of a batch, to compare with: the idea of docs/batches.md, as told.

Each sample is searched on its own by Levenberg–Marquardt with derivatives by automatic
differentiation, for every class and from many starts; those found are deflated. There is no joint
system, no use of the bias and no certificate. Labels are smoothed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

STARTS = 64  # starting points per class
PROBLEMS = 1500  # that are solved at once, at most
STEPS = 40
ROUNDS = 20
EXACT = 1e-9  # the sum of squares below which a solution counts
Residual = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class NaiveHead:
    """The head's weights (C, I), its bias (C,) and features (N, I) of some images to start from."""

    weights: Tensor
    bias: Tensor
    features: Tensor


def naive_batch(head: NaiveHead, gradient: Tensor, size: int, seed: int = 0) -> Tensor:
    """Return the labels (N, C) that are found behind the mean gradient of a batch."""
    generator = torch.Generator().manual_seed(seed)
    U, S, Vh = torch.linalg.svd(gradient.double(), full_matrices=False)
    U, S, V = U[:, :size], S[:size], Vh[:size].T
    logit_map = size * (head.weights.double() @ V) * S
    classes = gradient.double().sum(1).argsort()
    classes = classes[: max(4, 2 * size)] if len(classes) > 20 else classes
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(ROUNDS):
        within_a, within_b = _left(found, 1, size), _left(found, 0, size)
        count = max(1, min(STARTS, PROBLEMS // len(classes)))
        drawn = torch.randint(len(head.features), (count,), generator=generator)
        start = (head.features[drawn].double() @ V) / (size * S)
        noise = torch.randn(start.shape, generator=generator, dtype=torch.double)
        stretch = 0.7 + 0.7 * torch.rand(count, 1, generator=generator, dtype=torch.double)
        start = (start * stretch + 0.3 * start.abs().mean(0) * noise) @ within_b
        spans = _spans(U @ within_a, classes)
        inverse = torch.linalg.pinv(spans)
        kind = torch.arange(len(classes)).repeat(count)
        residual = _residual(logit_map, head.bias.double(), within_a, within_b)
        start = start.repeat_interleave(len(classes), 0)
        beta, kind, cost = _minimise(residual, start, kind, (spans, inverse))
        p = torch.softmax(beta @ (logit_map @ within_b).T + head.bias.double(), 1)
        c = (inverse[kind] @ p[..., None])[..., 0]
        a, b = c[:, : within_a.shape[1]] @ within_a.T, beta @ within_b.T
        y = p - a @ U.T
        for row in cost.argsort().tolist():
            if cost[row] > EXACT or len(found) == size:
                break
            apart = all(
                abs(float(f[0] @ b[row])) < 1e-3 and abs(float(f[1] @ a[row])) < 1e-3 for f in found
            )
            if apart and float(y[row].min()) > -1e-4 and float(a[row].norm()) > 1e-6:
                found.append((a[row], b[row], y[row]))
        if len(found) == size:
            break
    return torch.stack([y for _, _, y in found]) if found else gradient.new_zeros(0, len(gradient))


def _left(found: list[tuple[Tensor, Tensor, Tensor]], part: int, size: int) -> Tensor:
    """Return a basis (B, K) of what is orthogonal to what was found."""
    if not found:
        return torch.eye(size, dtype=torch.double)
    rows = torch.stack([one[part] for one in found])
    rest: Tensor = torch.linalg.svd(rows, full_matrices=True)[2][len(rows) :].T
    return rest


def _spans(U: Tensor, classes: Tensor) -> Tensor:
    """Return what explains ``p`` for each class: the differences, the class, and a constant."""
    corners = torch.eye(len(U), dtype=U.dtype)
    flat = torch.full_like(U[:, :1], 1 / len(U))
    return torch.stack([torch.cat([U, corners[:, k : k + 1], flat], 1) for k in classes.tolist()])


def _residual(logit_map: Tensor, bias: Tensor, within_a: Tensor, within_b: Tensor) -> Residual:
    def residual(beta: Tensor, span: Tensor, inverse: Tensor) -> Tensor:
        p = torch.softmax(logit_map @ (within_b @ beta) + bias, 0)
        c = inverse @ p
        a = c[: within_a.shape[1]]
        product = ((within_a @ a) * (within_b @ beta)).sum()
        return torch.cat([(p - span @ c) / (a.norm() + 1e-12), (product - 1)[None]])

    return residual


def _minimise(
    residual: Residual, x: Tensor, kind: Tensor, given: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return points, their kinds and their sums of squares after Levenberg–Marquardt."""
    values, slopes = vmap(residual), vmap(jacfwd(residual))
    span, inverse = (each[kind] for each in given)
    cost = torch.nan_to_num(values(x, span, inverse).square().sum(-1), nan=1e30)
    damping = torch.full_like(cost, 1e-2)
    for step in range(STEPS):
        r, J = values(x, span, inverse), slopes(x, span, inverse)
        H = J.mT @ J
        diagonal = torch.diagonal(H, dim1=-2, dim2=-1)
        H = H + torch.diag_embed(damping[:, None] * diagonal + 1e-30)
        move = torch.linalg.solve_ex(H, J.mT @ r[..., None])[0][..., 0]
        trial = x - torch.nan_to_num(move)
        lower = torch.nan_to_num(values(trial, span, inverse).square().sum(-1), nan=1e30)
        better = lower < cost
        x, cost = torch.where(better[:, None], trial, x), torch.where(better, lower, cost)
        damping = torch.where(better, damping * 0.2, damping * 5).clamp(1e-14, 1e10)
        if step == STEPS // 2 and len(x) > 512:
            kept = cost.argsort()[: max(256, len(x) // 4)]
            x, cost, damping, kind = x[kept], cost[kept], damping[kept], kind[kept]
            span, inverse = span[kept], inverse[kept]
    return x, kind, cost
