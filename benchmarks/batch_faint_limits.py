"""Ask of every one-hot label that was missed whether the data hold it, by building a rival batch.

    python -m benchmarks.batch_faint_limits --data DIR --only "resnet20 converged" --batches 100

A rival has the other samples of the batch as they are. In place of the missed one it has a sample
of another class that the network is sure of: a feature of a real image of that class, times a
factor. The exact gradient of the rival is compared with the numbers that were sent, row by row in
parts of each row's length, since each row is exact to such a part. If it comes as near to them as
the exact gradient of the true batch does, the numbers do not tell the two classes apart. The truth
is used here to build rivals. It has no part in the attack.
"""

from __future__ import annotations

import torch
from torch import Tensor

import softleak as sl
from benchmarks.batch_limits import AS_NEAR, LimitsRequest, features_of, missed_rows
from softleak.batches.recover import read_batch
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.share import GradientShare

FACTORS = torch.linspace(0.5, 2.0, 61, dtype=torch.double)  # what features are multiplied by


def sent_by(head: Head, share: GradientShare) -> Tensor:
    """Return the head's gradient (C, I + 1) in float64, that of its bias as the last column."""
    columns = [share[head.weight_name].double(), share[head.bias_name].double()[:, None]]
    return torch.cat(columns, 1)


def gradients(head: Head, features: Tensor, classes: Tensor) -> Tensor:
    """Return exact gradients (N, C, I + 1) of batches of features (N, B, I) and classes (B,)."""
    logits = features @ head.W.double().T + head.b.double()
    own = torch.eye(logits.shape[-1], dtype=torch.double)[classes]
    # An entry 1 − p that is tiny is the sum of the others.
    p = torch.softmax(logits, -1)
    others = (p * (1 - own)).sum(-1, keepdim=True)
    delta = torch.where(own > 0, -others, p)
    widened = torch.cat([features, torch.ones_like(features[..., :1])], -1)
    return torch.matmul(delta.mT, widened).div(features.shape[-2])


def distances(sent: Tensor, exact: Tensor) -> Tensor:
    """Return how far gradients (N, C, I) are from what was sent, in parts of each row's length."""
    lengths = sent.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float).tiny)
    parts = torch.div(exact - sent, lengths)
    return parts.square().sum((-2, -1)).sqrt()


def rivals_of(
    head: Head, sent: Tensor, features: Tensor, classes: Tensor, row: int, pool: Tensor, index: int
) -> float:
    """Return how much further the nearest rival of a class is from what was sent than the truth.

    Args:
        head: the head of the network.
        sent: (C, I + 1) what was sent.
        features: (B, I) the true features.
        classes: (B,) the true classes.
        row: the sample that is replaced.
        pool: (N, I) features of real images of the other class.
        index: that class.
    """
    tried = (FACTORS[:, None, None] * pool).reshape(-1, pool.shape[-1])
    many = features.expand(len(tried), -1, -1).clone()
    many[:, row] = tried
    other = classes.clone()
    other[row] = index
    true = distances(sent, gradients(head, features[None], classes))
    return float(distances(sent, gradients(head, many, other)).min() / true.clamp_min(1e-300))


def main() -> None:
    """Attack the batches of one cell, and ask of every label that was missed."""
    torch.set_num_threads(1)
    given = LimitsRequest.read(__doc__ or "")
    model, subject = given.model, given.subject
    head, knowledge = subject.head, Knowledge(sl.OneHot(), samples=given.size)
    seen, missed = [], []
    for number in range(given.batches):
        x, y = given.batch("one-hot", number)
        share = sl.capture(model, x, y)
        seen.append((features_of(model, head, x), y.argmax(1), sent_by(head, share)))
        rows = missed_rows(read_batch(subject, share, knowledge), y.double())
        missed += [(number, row) for row in rows]
    features, classes = (torch.cat([one[i] for one in seen]) for i in (0, 1))
    open_ones = 0
    for number, row in missed:
        own, true, sent = seen[number]
        ratios = {
            c: rivals_of(head, sent, own, true, row, features[classes == c], c)
            for c in sorted(set(classes.tolist()))
            if c != int(true[row])
        }
        near = sorted(c for c, ratio in ratios.items() if ratio < AS_NEAR)
        open_ones += bool(near)
        print(f"batch {number}, class {int(true[row])} missed: rivals of classes {near}")
    total = given.batches * given.size
    print(f"{total} samples, {len(missed)} missed, of these {open_ones} are not in the data")


if __name__ == "__main__":
    main()
