"""This module recovers the labels and features of a batch whose features come from a ReLU.

The head's gradient is ``G = Σ_i δ'_i x_iᵀ``, and the features ``x_i`` are the sparse vectors of its
row space. Their scales follow from the bias's gradient of the layer before, which is
``Σ_i (Wᵀ δ'_i) ∘ [x_i > 0]``: linear in the inverse scales, with an equation for every feature.
"""

from __future__ import annotations

import math

from softleak.batches.direction_settings import DIRECTIONS
from softleak.batches.feature_fit import FeatureProblem
from softleak.batches.feature_verdict import judge_features
from softleak.batches.gradient_space import GradientSpace
from softleak.batches.sparse_directions import sparse_directions
from softleak.batches.sparse_layer import layers_before_head
from softleak.knowledge import Knowledge
from softleak.results import BatchRecovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


def recover_by_features(
    subject: Subject, share: GradientShare, knowledge: Knowledge, size: int | None = None
) -> BatchRecovery | None:
    """Recover the label and the feature of every sample from the last two layers.

    Args:
        subject: the model.
        share: what the client sent.
        knowledge: what is known of the share.
        size: the number of samples, if it is known.

    Returns:
        The samples without inputs, or None if the model or the share is not of this kind.
    """
    head, layers = subject.head, subject.once(layers_before_head)
    size = knowledge.samples if size is None else size
    if not layers or knowledge.head_only or head.weight_name not in share:
        return None
    before = layers[0]
    if f"{before}.bias" not in share:
        return None
    G = share[head.weight_name].double()
    relative = share.resolution(head.weight_name, head.dtype)
    noise = math.hypot(share.noise(head.weight_name), knowledge.noise)
    space = GradientSpace.of(G.T.contiguous(), relative, noise)
    if not 0 < space.rank < min(head.classes - 1, len(G.T)):
        return None  # the rank of so few classes does not tell how many samples there are
    found = sparse_directions(space.R, space.errors, DIRECTIONS)
    if len(found) != space.rank:
        message = (
            f"At least {space.rank} samples are behind the share. The features of {len(found)} "
            "were found by their zeros, and scales need all of them: this attack did not succeed, "
            "which does not mean that the batch is hidden."
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    problem = FeatureProblem.of(subject, share, space, found.zeros, before)
    return judge_features(subject, share, knowledge.of(share), problem, size)
