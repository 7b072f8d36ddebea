"""Ask of every label that was missed whether the data hold it, by building a rival batch.

    python -m benchmarks.batch_limits --data DIR --only "resnet20 converged" --size 2 --batches 100

A rival has the same classes, smoothed labels one of which is ``SHIFT`` away in L1, and other
features. Its exact gradient of the head is compared with the numbers that were sent. If it comes as
near to them as the exact gradient of the true batch does, which rounding alone separates from them,
then the numbers do not tell the two batches apart. Two rivals on either side of a label are more
than twice the accepted error of 1e-3 apart, so no attack on the head is right about both. The truth
is used here to build rivals. It has no part in the attack.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.batches import KINDS, RIGHT, batch_of
from softleak.batches.recover import read_batch
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.numerics.least_squares import Levenberg
from softleak.paper.data import ImageSet
from softleak.paper.networks import NETWORKS, Network, Shelf

SHIFT = 2.2e-3  # how far a rival's label is from the true one, in L1
AS_NEAR = 1.5  # a rival may be so much further from what was sent than the truth is
STEPS = Levenberg(iterations=60, damping=1e-8, checkpoints=(), settled=1e-9)


@dataclass(frozen=True, eq=False)
class RivalSearch:
    """The head's gradient of batches near the true one, as residuals of the numbers that were sent.

    Attributes:
        head: the head of the network.
        sent: (C, I) what was sent, in float64, with the bias's gradient as a further column.
        features: (B, I) the true features.
        labels: (B, C) the true labels, which are smoothed.
        row: the sample whose label is held away from the truth.
        shift: by how much its smoothing is moved.
    """

    head: Head
    sent: Tensor
    features: Tensor
    labels: Tensor
    row: int
    shift: float

    @property
    def _directions(self) -> Tensor:
        """Return the direction (B, C) in which smoothing moves each label."""
        corners = torch.eye(self.labels.shape[1], dtype=torch.double)[self.labels.argmax(1)]
        return 1 / self.labels.shape[1] - corners

    def _batch(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features with the bias's own (B, I), probabilities and differences (B, C)."""
        size = len(self.labels)
        features = z[: size * size].reshape(size, size) @ self.features
        moved = z[size * size :].clone()
        moved[self.row] = self.shift
        p = torch.softmax(features @ self.head.W.double().T + self.head.b.double(), -1)
        ones = torch.ones_like(features[:, : self.sent.shape[1] - features.shape[1]])
        delta = p - self.labels - moved[:, None] * self._directions
        return torch.cat([features, ones], 1), p, delta

    @property
    def _weights(self) -> Tensor:
        lengths = self.sent.square().sum(0).sqrt()
        return 1 / (len(self.labels) * lengths.clamp_min(1e-30))

    def values(self, x: Tensor, kind: Tensor) -> Tensor:
        """Return the residuals (1, E) at unknowns (1, U): mixed features, and labels that move."""
        features, _, delta = self._batch(x[0])
        rest = (delta.T @ features - len(self.labels) * self.sent) * self._weights
        return rest.flatten()[None]

    def jacobian(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals and their derivatives (1, E, U)."""
        features, p, delta = self._batch(x[0])
        logits = self.features @ self.head.W.double().T
        still = torch.zeros_like(features)
        still[:, : self.features.shape[1]] = self.features
        columns = [
            torch.outer(p[i] * (logits[j] - p[i] @ logits[j]), features[i])
            + torch.outer(delta[i], still[j])
            for i in range(len(p))
            for j in range(len(p))
        ]
        free = [float(i != self.row) for i in range(len(p))]
        columns += [
            -own * torch.outer(self._directions[i], features[i]) for i, own in enumerate(free)
        ]
        J = torch.stack([(column * self._weights).flatten() for column in columns], 1)
        return self.values(x, kind), J[None]

    @property
    def start(self) -> Tensor:
        """Return the unknowns (1, U) of the true batch."""
        size = len(self.labels)
        still = torch.zeros(size, dtype=torch.double)
        return torch.cat([torch.eye(size, dtype=torch.double).flatten(), still])[None]

    def ratio(self) -> float:
        """Return how much further the nearest rival is from what was sent than the truth is."""
        kind = torch.zeros(1, dtype=torch.long)
        _, cost, _ = STEPS.minimise(self, self.start, kind)
        truth = RivalSearch(self.head, self.sent, self.features, self.labels, self.row, 0.0)
        true_cost = truth.values(truth.start, kind).square().sum()
        return float((cost[0] / true_cost.clamp_min(1e-300)).sqrt())


def is_open(head: Head, share: GradientShare, features: Tensor, labels: Tensor, row: int) -> bool:
    """Return whether rivals on both sides of a label come as near to a share as the truth."""
    columns = [share[head.weight_name].double()]
    if head.has_bias and head.bias_name in share:
        columns.append(share[head.bias_name].double()[:, None])
    away = SHIFT / float((1 / labels.shape[1] - torch.eye(labels.shape[1])[0]).abs().sum())
    sent = torch.cat(columns, 1)
    found = [RivalSearch(head, sent, features, labels, row, s) for s in (-away, away)]
    return all(one.ratio() < AS_NEAR for one in found)


@dataclass(frozen=True, eq=False)
class LimitsRequest:
    """What was asked on the command line: the batches of one cell.

    Attributes:
        network: the network.
        model: its module, with weights.
        images: the images that batches are made of.
        size: the number of samples of a batch.
        batches: the number of batches.
    """

    network: Network
    model: nn.Module
    images: ImageSet
    size: int
    batches: int

    @classmethod
    def read(cls, words: str) -> LimitsRequest:
        """Read the command line of a program that says of itself what the ``words`` say."""
        parser = argparse.ArgumentParser(description=words.splitlines()[0])
        parser.add_argument("--data", type=Path, required=True, help="folder of the data packs")
        parser.add_argument("--weights", type=Path, help="folder of trained weights")
        parser.add_argument("--only", default="resnet20 converged", help="the network")
        parser.add_argument("--size", type=int, default=2)
        parser.add_argument("--batches", type=int, default=100)
        given = parser.parse_args()
        shelf, network = Shelf(given.data, given.weights), NETWORKS[given.only]
        images = shelf.images(network.source)
        return cls(network, network.build(shelf), images, given.size, given.batches)

    @cached_property
    def subject(self) -> Subject:
        """The model as attacks see it."""
        return Subject.of(self.model, self.network.input_shape)

    def batch(self, kind: str, number: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of a batch whose labels are of this kind."""
        return batch_of(self.network, self.images, KINDS[kind][0], self.size, number)


def missed_rows(found: sl.BatchRecovery, truth: Tensor) -> list[int]:
    """Return the samples whose label is not among those that were found."""
    labels = [one.label for one in found.samples if one.label is not None]
    off = torch.cdist(truth, torch.stack(labels or [truth[0] + 1]), p=1).amin(1)
    return [int(i) for i in (off >= RIGHT).nonzero()[:, 0]]


def main() -> None:
    """Attack the batches of one cell, and ask of every label that was missed."""
    torch.set_num_threads(1)
    given = LimitsRequest.read(__doc__ or "")
    model, subject = given.model, given.subject
    knowledge = Knowledge(sl.Smoothed(), samples=given.size)
    counts = torch.zeros(3, dtype=torch.long)
    for number in range(given.batches):
        x, y = given.batch("smoothed", number)
        share, truth = sl.capture(model, x, y), y.double()
        missed = missed_rows(read_batch(subject, share, knowledge), truth)
        seen = features_of(model, subject.head, x) if missed else truth
        opened = [is_open(subject.head, share, seen, truth, row) for row in missed]
        counts += torch.tensor([given.size, len(missed), sum(opened)])
        if missed:
            told = ["open" if one else "held by the data" for one in opened]
            print(f"batch {number}, classes {y.argmax(1).tolist()}: {told}", flush=True)
    print(f"{counts[0]} samples, {counts[1]} missed, of these {counts[2]} are not in the data")


def features_of(model: torch.nn.Module, head: Head, x: Tensor) -> Tensor:
    """Return the features (B, I) in float64."""
    seen: list[Tensor] = []
    place = model.get_submodule(head.name)
    handle = place.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[-1].double()


if __name__ == "__main__":
    main()
