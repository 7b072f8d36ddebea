"""A network of the paper, prepared so that many shares of its clients can be attacked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from softleak.client import capture
from softleak.data import Augmentation, Sample
from softleak.experiments.networks import Network
from softleak.experiments.seeds import SEEDS
from softleak.experiments.shelf import Shelf
from softleak.head import Head
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.evidence.relation import Relation
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True, eq=False)
class AttackedNetwork:
    """A network with its data, and the subject that the attacks work on.

    Attributes:
        network: the description of the network and of its data.
        shelf: the data packs and weights that it was built from.
        subject: the built model with its head, and the evidence that its layers offer.
    """

    network: Network
    shelf: Shelf
    subject: Subject

    @classmethod
    def of(
        cls, network: Network, shelf: Shelf, *, evidence: bool = True, everything: bool = False,
        dtype: torch.dtype = torch.float32, training: bool = False,
    ) -> AttackedNetwork:  # fmt: skip
        """Build a network and look for evidence in its layers.

        Args:
            network: the network to build.
            shelf: the data packs and weights that it needs.
            evidence: whether layers before the head are probed for evidence.
            everything: whether shares hold the gradient of every parameter. By default they hold
                only what the recovery of labels reads.
            dtype: the precision of the weights, and so of the gradients.
            training: whether the model is in train mode instead of eval mode.
        """
        model = network.build(shelf).to(dtype).train(training)
        subject = Subject.of(model, network.input_shape, head=Head.of(model))
        if not evidence:
            subject = subject.given(evidence_of, ())
        head, relations = subject.head, subject.once(evidence_of)
        read = {head.weight_name, *(relation.parameter for relation in relations)}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(everything or name in read - {head.bias_name})
        return cls(network, shelf, subject)

    @property
    def model(self) -> nn.Module:
        """The model whose clients' shares are attacked."""
        return self.subject.model

    @property
    def head(self) -> Head:
        """Return the last linear layer of the model."""
        return self.subject.head

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The evidence that the layers before the head offer; empty if nobody looked for it."""
        return self.subject.once(evidence_of)

    def sample(self, kind: Augmentation, number: int, repeat: int = 0) -> Sample:
        """Return a sample that depends on nothing but its number and its repetition.

        Args:
            kind: the augmentation that makes the input and the label.
            number: the number of the sample within the repetition.
            repeat: the number of the repetition.
        """
        return self.network.sample(self.shelf, kind, number, SEEDS.samples + repeat)

    def share(self, sample: Sample) -> GradientShare:
        """Return the gradient that a client sends for this sample."""
        return capture(self.model, sample.x, sample.y)
