"""This module names the classes that an attacker who knows of the noise sees behind it.

A sum of ``p − y`` below zero proves a class (``softleak.labels.batch``). Behind noise of a known
size the same sums say so with a confidence: each is compared with the noise it carries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.factors import head_gradients
from softleak.labels.batch import BatchReader
from softleak.share import GradientShare
from softleak.subject import Subject

NAMED_Z = 3.0  # standard deviations below zero at which an attacker takes a class for proved


def classes_named(subject: Subject, sent: GradientShare, noise: float) -> frozenset[int]:
    """Return the classes read off a share whose entries carry noise of this standard deviation."""
    try:
        reader = subject.once(BatchReader.of)
    except Exception:  # it runs the model, whose own code may raise anything
        return frozenset()
    named = set(reader.read(sent.expecting(noise)).present)
    for sums, size in _sums(reader, sent):
        named |= set((sums < -NAMED_Z * noise * size).nonzero()[:, 0].tolist())
    return frozenset(named)


def _sums(reader: BatchReader, sent: GradientShare) -> list[tuple[Tensor, Tensor]]:
    """Return sums (C,) that only classes in the update make negative, and the size of their noise.

    The bias's gradient is one. If no feature is negative, the rows of the weight's gradient are
    others, best added up as the usual feature has it; and so are both together. Entries that were
    not sent are zero and carry no noise.
    """
    head = reader.head
    (G,) = head_gradients(head, [sent])
    delta = (
        sent[head.bias_name].double().cpu() if head.has_bias and head.bias_name in sent else None
    )
    one = torch.ones(())
    alone = [] if delta is None else [(delta, one)]
    if not reader.never_negative:
        return alone
    usual = reader.features.mean(0).cpu()
    weight = G.double().cpu()
    square = (weight != 0).to(usual) @ usual.square()
    rows = weight @ usual
    both = [] if delta is None else [(rows + delta, (square + 1).sqrt())]
    return [*alone, (rows, square.sqrt()), *both]
