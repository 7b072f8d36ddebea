"""A network made ready to be attacked: its head, its evidence, and no gradient nobody reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import softleak as sl
from softleak.data import Augmentation, Sample
from softleak.experiments.networks import Network
from softleak.experiments.shelf import Shelf
from softleak.labels.evidence.relation import Relation

SEED = 1  # of the first repetition


@dataclass(frozen=True, eq=False)
class Target:
    """A model whose clients' shares are attacked."""

    network: Network
    shelf: Shelf
    model: nn.Module
    head: sl.Head
    relations: tuple[Relation, ...]

    @classmethod
    def of(
        cls, network: Network, shelf: Shelf, *, evidence: bool = True, everything: bool = False,
        dtype: torch.dtype = torch.float32, training: bool = False,
    ) -> Target:  # fmt: skip
        """Build and probe it; unless ``everything`` is asked for, shares hold what labels need."""
        model = network.build(shelf).to(dtype).train(training)
        head = sl.Head.of(model)
        relations = sl.probe(model, network.input_shape, head=head) if evidence else ()
        read = {head.weight_name, *(relation.parameter for relation in relations)}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(everything or name in read - {head.bias_name})
        return cls(network, shelf, model, head, tuple(relations))

    def sample(self, kind: Augmentation, number: int, repeat: int = 0) -> Sample:
        """A sample that depends on nothing but its number and repetition."""
        return self.network.sample(self.shelf, kind, number, SEED + repeat)

    def share(self, sample: Sample) -> sl.GradientShare:
        """What its client would send."""
        return sl.capture(self.model, sample.x, sample.y)
