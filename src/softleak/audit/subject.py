"""A model made ready for an audit: found out once, used for every share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from softleak.errors import ModelError
from softleak.head import Head, find_head
from softleak.inputs import accepted_shapes
from softleak.inversion.chain import Chain
from softleak.labels.evidence.probes import probe
from softleak.labels.evidence.relation import Relation


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, its head, the evidence it offers, and the chain to walk back if it is one."""

    model: nn.Module
    head: Head
    relations: tuple[Relation, ...]
    input_shape: tuple[int, ...] | None
    chain: Chain | None
    no_chain: str  # why there is none

    @classmethod
    def of(
        cls,
        model: nn.Module,
        input_shape: tuple[int, ...] | None = None,
        *,
        inputs: bool = True,
    ) -> Subject:
        """Probe a model in its present mode; without ``inputs`` nobody will ask for the chain."""
        head = find_head(model, None, input_shape)
        known = input_shape or next(accepted_shapes(model), None)
        relations = probe(model, input_shape, head=head) if known else ()
        chain, why = _chain(model, head, known) if inputs else (None, "inputs were not asked for")
        return cls(model, head, relations, known, chain, why)


def _chain(model: nn.Module, head: Head, shape: tuple[int, ...] | None) -> tuple[Chain | None, str]:
    if shape is None:
        return None, "the shape of an input is not known; say it"
    try:
        return Chain.of(model, head, shape), ""
    except ModelError as error:
        return None, str(error)
