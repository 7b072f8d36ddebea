"""Recover the inputs of a batch behind local training of a fully connected network.

Inputs never change while weights do. Less its weight decay, the update of the first layer is
``Σ_k w_k D_kᵀ X = Dᵀ X``, where each sample's row of ``D`` is zero at the units that were off in
all of its steps: the sparse vectors that lead to the inputs of one step lead to these as well. Only
the labels do not follow, because the rows of ``D`` are sums over weights that moved.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from softleak.batches.space import GradientSpace
from softleak.batches.sparse.directions import Directions, sparse_directions
from softleak.batches.sparse.labels import (
    VERDICT_MISFIT,
    Differences,
    Inputs,
    differences,
    judge,
    status_of,
)
from softleak.batches.sparse.layer import first_layer, is_homogeneous, run_through
from softleak.core.factors import SMALLEST_NORMAL
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.update import SgdSteps, mean_gradient
from softleak.labels.recover import recover
from softleak.resimulation import exact_copy, resimulate

OWN_ROUNDINGS = 4.0  # what the walk through the model adds to the error of a sample's gradient


def recover_without_scale(
    subject: Subject, share: GradientShare, knowledge: Knowledge, space: GradientSpace,
    found: Directions, size: int | None,
) -> BatchRecovery:  # fmt: skip
    """Recover the samples whose sparse vectors were found, where no bias tells their scales."""
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
    factors = [
        x.new_tensor(0.0) if r.feature is None else r.feature.double().norm() / f.norm()
        for r, f in zip(recoveries, features, strict=True)
    ]
    x = x * torch.stack(factors).view(-1, *[1] * (x.ndim - 1))
    known = all(r.label is not None and r.feature is not None for r in recoveries)
    labels = [r.label.double() for r in recoveries if r.label is not None]
    agrees = known and resimulate(subject, share, x, torch.stack(labels)).agree
    sure = agrees and size == rank and alone.scale == "known"
    sure = sure and bool((parts.misfit <= VERDICT_MISFIT).all())
    samples = tuple(recoveries if sure else map(_doubted, recoveries))
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    message = _message(rank, proved, known, agrees)
    # An error of a label is one of its scale, and so of its input.
    error = max((r.error for r in samples), default=torch.inf) * float(x.abs().max())
    return BatchRecovery(
        status_of(samples), message, size or rank, samples, x if known else None,
        error if sure else torch.inf,
    )  # fmt: skip


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
    out, name = [], head.weight_name
    for delta, error, feature in zip(parts.delta, parts.errors, features, strict=True):
        G = size * torch.outer(delta, feature)
        off = float(error.norm() / delta.norm()) + OWN_ROUNDINGS * relative
        rounding = off * float(G.square().mean().sqrt())
        out.append(GradientShare({name: G}, share.input_shape, {name: rounding}))
    return out


def _doubted(recovery: Recovery) -> Recovery:
    unique = recovery.status is Status.UNIQUE
    return replace(recovery, status=Status.AMBIGUOUS) if unique else recovery


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


def recover_by_inputs(
    subject: Subject, share: GradientShare, knowledge: Knowledge, size: int | None = None
) -> BatchRecovery | None:
    """Recover every sample with its input by a fully connected first layer, if there is one."""
    layer = subject.once(first_layer)
    size = knowledge.samples if size is None else size
    if layer is None or f"{layer}.weight" not in share or knowledge.head_only:
        return None
    space = first_layer_space(subject, share, f"{layer}.weight", knowledge)
    if not space.rank:
        return None
    found = sparse_directions(space.R, space.errors)
    if len(found) != space.rank:
        message = (
            f"At least {space.rank} samples are behind the share. Of the patterns in which their "
            f"ReLUs were on and off, {len(found)} were found, and the inputs need all of them: "
            "this attack did not succeed, which does not mean that the batch is hidden."
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    if f"{layer}.bias" not in share:
        return recover_without_scale(subject, share, knowledge, space, found, size)
    inputs = inputs_of(share, layer, space, found)
    return judge(subject, share, knowledge.of(share), inputs, size)


def first_layer_space(
    subject: Subject, share: GradientShare, name: str, knowledge: Knowledge
) -> GradientSpace:
    """Return the space of the first layer's gradient, whose weight has this name."""
    G = share[name].double()
    relative = share.resolution(name, subject.parameters[name].dtype)
    return GradientSpace.of(G, relative, math.hypot(share.noise(name), knowledge.noise))


def inputs_of(share: GradientShare, layer: str, space: GradientSpace, found: Directions) -> Inputs:
    """Return ``D``, scaled by the gradient of the bias, and the inputs."""
    unit = found.vectors @ space.R.T  # (B, m), each row up to its scale
    bias = share[f"{layer}.bias"].double()
    errors = _bias_errors(share, layer, space, bias)
    weighted = (unit / errors).T
    factor = torch.linalg.qr(weighted)
    scales = torch.linalg.solve_triangular(
        factor.R, (factor.Q.T @ (bias / errors))[:, None], upper=True
    )[:, 0]
    left = weighted @ scales - bias / errors
    misfit = float(left.square().sum().div(max(len(bias) - len(scales), 1)).sqrt())
    D = torch.where(found.zeros, 0.0, unit * scales[:, None])
    X = torch.linalg.lstsq((D / space.errors).T, (space.R / space.errors[:, None])).solution
    spread = torch.linalg.inv(factor.R).norm(dim=1) * max(misfit, 1.0) / scales.abs()
    mixing = _mixing(D, found, space, scales)
    pinv = torch.linalg.pinv((D / space.errors).T)  # (B, m): rounding of each row is one
    X = X @ space.V.T
    direct = pinv.norm(dim=1)
    largest = X.abs()
    error = direct.hypot(spread * largest.amax(1)).hypot(mixing * largest.max())
    # The client's own rounding of D: its entries are sums whose terms are about as large as D.
    own = share.resolution(f"{layer}.weight", share[f"{layer}.weight"].dtype)
    rounding = own * D.square().sum(1).div((D != 0).sum(1).clamp_min(1)).sqrt()
    row_errors = scales.abs()[:, None] * space.errors + spread[:, None] * D.abs()
    row_errors = row_errors + rounding[:, None]
    return Inputs(layer, D, row_errors, X, float(error.max()), misfit)


def _bias_errors(share: GradientShare, layer: str, space: GradientSpace, bias: Tensor) -> Tensor:
    """Return standard errors (m,) of the bias's gradient: rounding of its terms, and noise."""
    name = f"{layer}.bias"
    dtype = share[name].dtype
    relative = share.resolution(name, dtype)
    size = space.R.shape[1] ** 0.5
    # Its entries are sums over the batch, whose terms may cancel: rounding is that of the terms.
    terms = bias.abs() + bias.square().mean().sqrt() / size
    errors = (relative * terms).hypot(terms.new_tensor(share.noise(name)))
    return torch.clamp_min(errors, SMALLEST_NORMAL)


def _mixing(D: Tensor, found: Directions, space: GradientSpace, scales: Tensor) -> Tensor:
    """Return how much (B,) of other samples an error of each direction mixes into its own."""
    out = []
    for i, zeros in enumerate(found.zeros):
        others = torch.cat([D[:i], D[i + 1 :]])[:, zeros] / space.errors[zeros]
        if not len(others):
            out.append(D.new_zeros(()))
            continue
        covariance = torch.linalg.pinv(others @ others.T, hermitian=True)
        out.append(covariance.diagonal().clamp_min(0).sum().sqrt() * scales[i].abs())
    return torch.stack(out)


LARGEST_BIAS_MISFIT = 32.0  # what the samples' scales may leave of the bias's update, in errors


def recover_trained_batch(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> BatchRecovery:
    """Recover the inputs of all samples behind an update of local training by SGD.

    Needs a fully connected first layer with a bias and a ReLU. Inputs are AMBIGUOUS: no label was
    read, and without labels the client cannot be run again. A sample that is there twice is found
    once.
    """
    layer = subject.once(first_layer)
    if layer is None or f"{layer}.weight" not in share or f"{layer}.bias" not in share:
        return _none("the model has no fully connected first layer with a bias and a ReLU")
    gradient = _mean(subject, share, knowledge.samples)
    if gradient is None:
        return _none("the client's steps are not SGD, or not all of its settings are known")
    space = first_layer_space(subject, gradient, f"{layer}.weight", knowledge)
    if not space.rank:
        return _none("the first layer did not move")
    found = sparse_directions(space.R, space.errors)
    if len(found) != space.rank:
        message = (
            f"At least {space.rank} samples are behind the update. The patterns of active units of "
            f"{len(found)} were found, and inputs need all of them: units that switched between "
            "steps hide the others. This attack did not succeed."
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    inputs = inputs_of(gradient, layer, space, found)
    x = inputs.X.view(-1, *subject.expected_tensor_shape)
    if not inputs.misfit <= LARGEST_BIAS_MISFIT:
        message = (
            f"The directions of {space.rank} inputs were found, but their lengths leave "
            f"{inputs.misfit:.3g} standard errors of the update of the bias: another client?"
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    message = (
        f"The inputs of {space.rank} samples follow from the update of the first layer, whatever "
        "the order of the steps. Their labels were not read."
    )
    size = knowledge.samples or space.rank
    return BatchRecovery(Status.AMBIGUOUS, message, size, (), x, inputs.input_error)


def _mean(subject: Subject, share: GradientShare, samples: int | None) -> GradientShare | None:
    """Return the mean gradient of all steps of a client; its scale matters only for decay."""
    training = share.made_by
    if training is None:
        return share
    if training.epochs is not None and samples is not None:
        count = len(training.batches(samples, torch.device("cpu")))
        training = replace(training, epochs=None, steps=count)
    recipe = SgdSteps.of(training)
    # Weight decay is undone with the number of steps, which takes the number of samples.
    open_ = training.epochs is not None and training.batch_size is not None
    if recipe is None or (open_ and recipe.weight_decay):
        return None
    return mean_gradient(subject, share, recipe)


def _none(why: str) -> BatchRecovery:
    return BatchRecovery(Status.NO_SOLUTION, f"Not attempted: {why}.", 1)
