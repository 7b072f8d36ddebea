"""This module holds ``reconstruct_batch``: all inputs of a batch, solved for together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softleak.errors import LabelError, ShareError
from softleak.matching.arguments import expect
from softleak.matching.gauss_newton.from_starts import described, solve_from_starts
from softleak.matching.gauss_newton.newton_method import GaussNewton
from softleak.matching.gauss_newton.share_equations import BatchKnowledge
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.starts import Noise, Start
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare
from softleak.subject import Subject


def reconstruct_batch(
    model: nn.Module,
    share: GradientShare,
    labels: Tensor,
    features: Tensor | None = None,
    *,
    label_error: float = 0.0,
    method: GaussNewton | None = None,
    start: Start | None = None,
    restarts: int = 0,
) -> Reconstruction:
    """Solve for all inputs of a batch together, by Gauss–Newton on its share.

    Args:
        model: the classifier, in the mode the client used. Nothing of it is changed.
        share: what the client sent: the mean gradient of the batch. It says the inputs' shape.
        labels: the soft labels (B, C) of the samples, as they were recovered.
        features: the features (B, I) of the samples in the same order, if they were recovered. They
            count with a relative error of 1e-4.
        label_error: the error of each entry of the labels.
        method: how the equations are solved; by default ``GaussNewton()``.
        start: where the inputs begin; by default at nearly grey noise.
        restarts: how many further starts are tried until one explains the share.

    Returns:
        The inputs (B, …) and labels (B, C) with what is proved of them. The inputs are in the order
        of the labels; samples of one label have no order.

    Raises:
        ShareError: if the share does not fit the model, or does not say the shape of its inputs.
        LabelError: if the labels are not of shape (B, C).
    """
    expect(share, GradientShare, "a GradientShare")
    shape = share.input_shape
    if shape is None:
        raise ShareError("the share does not say the shape of its inputs; set input_shape on it")
    if not isinstance(shape, tuple):
        raise ShareError("expected a model that takes a single tensor of numbers")
    share.check_finite()
    subject = Subject.of(model, shape)
    share.check_shapes(subject.parameters)
    if labels.ndim != 2 or labels.shape[1] != subject.head.classes:
        raise LabelError(
            f"expected labels of shape (B, {subject.head.classes}), got {tuple(labels.shape)}"
        )
    solver = method or GaussNewton()
    known = BatchKnowledge(labels, label_error, features, 0.0 if features is None else 1e-4)
    stopping = Stopping(solver.evaluations * (restarts + 1), solver.seconds)
    begin = start or Noise()
    starts = [_drawn(begin, shape, len(labels), attempt, solver) for attempt in range(restarts + 1)]
    found = solve_from_starts(solver, subject, share, known, starts, stopping, begin.near)
    return described(found, stopping)


def _drawn(
    start: Start, shape: tuple[int, ...], size: int, attempt: int, method: GaussNewton
) -> Tensor:
    """Return inputs (B, …) to begin with, of little contrast unless the start is near already."""
    contrast = 1.0 if start.near and attempt == 0 else method.contrast
    drawn = [start.draw(shape, attempt * size + i) for i in range(size)]
    return torch.stack(drawn).double() * contrast
