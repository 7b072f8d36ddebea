"""This module recovers batches from ReLU networks without biases: every sample's scale is free.

There the logits of ``c x`` are c times those of ``x``, and the gradients of all weights are the
same for ``c x`` and ``δ/c``: the sparse vectors give each sample up to its scale, and nothing but
the softmax tells it. Each sample is then the paper's problem of one scalar, with a ``δ xᵀ`` of its
own, and what is proved rests on the family of its label.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.batches.client_runs import exact_copy
from softleak.batches.exact_zeros import Directions
from softleak.batches.gradient_space import GradientSpace
from softleak.batches.resimulate import resimulate
from softleak.batches.sparse_labels import Differences, differences
from softleak.batches.sparse_layer import first_layer, is_homogeneous, run_through
from softleak.knowledge import Knowledge
from softleak.labels.recover import recover
from softleak.results import BatchRecovery, Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject

LARGEST_MISFIT = 32.0  # what a sample's δ may leave of its row of D, in standard errors
OWN_ROUNDINGS = 4.0  # what the walk through the model adds to the error of a sample's gradient


def recover_without_scale(
    subject: Subject,
    share: GradientShare,
    knowledge: Knowledge,
    space: GradientSpace,
    found: Directions,
    size: int | None,
) -> BatchRecovery:
    """Recover the samples whose sparse vectors were found, where no bias tells their scales.

    Args:
        subject: the model; ``first_layer`` is the layer whose gradient was factored.
        share: what the client sent.
        knowledge: what is known of the share.
        space: the space of the layer's gradient.
        found: the sparse vectors of all samples.
        size: the number of samples, if it is known.
    """
    rank = space.rank
    if not subject.once(is_homogeneous):
        message = (
            f"The inputs of {rank} samples are known up to a factor each, which the gradient of "
            "the first layer's bias would tell; the share does not hold it. Labels were not read."
        )
        return BatchRecovery(Status.AMBIGUOUS, message, size or rank)
    x, parts = _signed(subject, share, space, found)
    shares = _alone(subject, share, x, parts, rank)
    alone = replace(knowledge.of(share), head_only=True, samples=None)
    recoveries = recover(subject, shares, alone)
    features = run_through(subject.once(exact_copy), subject.head.name, x).entered.detach()
    factors = torch.stack(
        [
            x.new_tensor(0.0) if r.feature is None else r.feature.double().norm() / f.norm()
            for r, f in zip(recoveries, features, strict=True)
        ]
    )
    x = x * factors.view(-1, *[1] * (x.ndim - 1))
    known = all(r.label is not None and r.feature is not None for r in recoveries)
    agrees = known and _agrees(subject, share, x, recoveries)
    sure = agrees and size == rank and alone.scale == "known"
    sure = sure and bool((parts.misfit <= LARGEST_MISFIT).all())
    samples = tuple(recoveries if sure else map(_doubted, recoveries))
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    status = Status.UNIQUE if proved == rank else Status.AMBIGUOUS
    message = _message(rank, proved, known, agrees)
    # An error of a label is one of its scale, and so of its input.
    error = max((r.error for r in samples), default=torch.inf) * float(x.abs().max())
    return BatchRecovery(
        status, message, size or rank, samples, x if known else None, error if sure else torch.inf
    )


def _signed(
    subject: Subject, share: GradientShare, space: GradientSpace, found: Directions
) -> tuple[Tensor, Differences]:
    """Return inputs (B, …) up to a positive factor, and what their gradients say of ``δ``.

    Of a direction and its opposite, only one switches the units on that were on.
    """
    model, name = subject.once(exact_copy), subject.once(first_layer)
    assert name is not None  # its gradient was factored
    unit = torch.where(found.zeros, 0.0, found.vectors @ space.R.T)
    weights = 1 / space.errors
    X = torch.linalg.lstsq((unit * weights).T, space.R * weights[:, None]).solution @ space.V.T
    sizes = X.square().mean(1, keepdim=True).sqrt()
    X, D = X / sizes, unit * sizes
    relative = share.resolution(f"{name}.weight", subject.head.dtype)
    own = relative * D.square().sum(1).div((D != 0).sum(1).clamp_min(1)).sqrt()
    errors = sizes * space.errors + own[:, None]
    x = X.view(-1, *subject.expected_tensor_shape)
    plus = differences(model, name, x, D, errors, relative)
    minus = differences(model, name, -x, -D, errors, relative)
    right = plus.misfit <= minus.misfit
    signs = torch.where(right, 1.0, -1.0).to(x).view(-1, *[1] * (x.ndim - 1))
    return x * signs, plus.better(minus)


def _alone(
    subject: Subject, share: GradientShare, x: Tensor, parts: Differences, size: int
) -> list[GradientShare]:
    """Return for each sample the head's gradient that it would have sent alone."""
    head = subject.head
    features = run_through(subject.once(exact_copy), head.name, x).entered.detach()
    relative = share.resolution(head.weight_name, head.dtype) if head.weight_name in share else 0.0
    out = []
    for delta, error, feature in zip(parts.delta, parts.errors, features, strict=True):
        G = size * torch.outer(delta, feature)
        off = float(error.norm() / delta.norm()) + OWN_ROUNDINGS * relative
        rounding = off * float(G.square().mean().sqrt())
        out.append(
            GradientShare({head.weight_name: G}, share.input_shape, {head.weight_name: rounding})
        )
    return out


def _agrees(
    subject: Subject, share: GradientShare, x: Tensor, recoveries: tuple[Recovery, ...]
) -> bool:
    labels = torch.stack([r.label.double() for r in recoveries if r.label is not None])
    return resimulate(subject, share, x, labels).agree


def _doubted(recovery: Recovery) -> Recovery:
    if recovery.status is not Status.UNIQUE:
        return recovery
    return replace(recovery, status=Status.AMBIGUOUS)


def _message(rank: int, proved: int, known: bool, agrees: bool) -> str:
    told = "Some have no label of that family, so that the client could not be simulated."
    if agrees:
        told = "The client, simulated on all samples, sends this share up to rounding."
    elif known:
        told = "The simulated client does not send this share, so that nothing is proved."
    return (
        f"{rank} samples were found by their zeros, each up to its scale: no layer has a bias. "
        f"Their labels follow one by one as from shares of one sample, if they are of the family "
        f"that was said or taken; {proved} are proved. {told}"
    )
