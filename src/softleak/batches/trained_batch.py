"""This module recovers the inputs of a batch behind local training of a fully connected network.

Inputs never change while weights do. Less its weight decay, the update of the first layer is
``Σ_k w_k D_kᵀ X = Dᵀ X``, where each sample's row of ``D`` is zero at the units that were off in
all of its steps: the sparse vectors that lead to the inputs of one step lead to these as well. Only
the labels do not follow, because the rows of ``D`` are sums over weights that moved.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from softleak.batches.direction_settings import DIRECTIONS
from softleak.batches.sparse_directions import sparse_directions
from softleak.batches.sparse_inputs import first_layer_space, inputs_of
from softleak.batches.sparse_layer import first_layer
from softleak.knowledge import Knowledge
from softleak.labels.local.recipe import SgdSteps, mean_gradient
from softleak.results import BatchRecovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject

LARGEST_BIAS_MISFIT = 32.0  # what the samples' scales may leave of the bias's update, in errors


def recover_trained_batch(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> BatchRecovery:
    """Recover the inputs of all samples behind an update of local training.

    Args:
        subject: the model the client started from.
        share: ``before − after``, with the client in ``made_by``.
        knowledge: what is assumed; ``samples`` is the number of the client's samples, if known.

    Returns:
        The inputs, where the first layer is fully connected, has a bias and a ReLU, and the client
        took steps of SGD. They are AMBIGUOUS: no label was read, and without labels the client
        cannot be run again. A sample that is there twice is found once.
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
    found = sparse_directions(space.R, space.errors, DIRECTIONS)
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
