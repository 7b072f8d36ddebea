"""This module recovers every input and label of a batch from a fully connected first layer.

Behind a ReLU, ``∂L/∂W = Dᵀ X`` and ``∂L/∂b = Dᵀ 1``, and each sample's row of ``D`` is zero where
its unit was off: the rows are the sparse vectors of a known space (DESIGN: "Fully connected ReLU
layers"). Their scales follow from the bias's gradient, ``X = D⁺ ∂L/∂W``, and the labels from ``D``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softleak.batches.batch_verdict import Inputs, judge
from softleak.batches.direction_settings import DIRECTIONS
from softleak.batches.exact_zeros import Directions
from softleak.batches.gradient_space import GradientSpace
from softleak.batches.sparse_directions import sparse_directions
from softleak.batches.sparse_layer import first_layer
from softleak.batches.sparse_scaleless import recover_without_scale
from softleak.factors import SMALLEST_NORMAL
from softleak.knowledge import Knowledge
from softleak.results import BatchRecovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


def recover_by_inputs(
    subject: Subject, share: GradientShare, knowledge: Knowledge, size: int | None = None
) -> BatchRecovery | None:
    """Recover every sample behind a share from the gradient of a fully connected first layer.

    Args:
        subject: the model.
        share: what the client sent.
        knowledge: what is known of the share.
        size: the number of samples, if it is known.

    Returns:
        The samples with their inputs, or None if the model or the share is not of this kind.
    """
    layer = subject.once(first_layer)
    size = knowledge.samples if size is None else size
    if layer is None or f"{layer}.weight" not in share or knowledge.head_only:
        return None
    space = first_layer_space(subject, share, f"{layer}.weight", knowledge)
    if not space.rank:
        return None
    found = sparse_directions(space.R, space.errors, DIRECTIONS)
    if len(found) != space.rank:
        return _incomplete(space.rank, found)
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


def _incomplete(rank: int, found: Directions) -> BatchRecovery:
    message = (
        f"At least {rank} samples are behind the share. Of the patterns in which their ReLUs were "
        f"on and off, {len(found)} were found, and the inputs need all of them: this attack did "
        "not succeed, which does not mean that the batch is hidden."
    )
    return BatchRecovery(Status.NO_SOLUTION, message, rank)


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
