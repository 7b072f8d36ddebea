"""A model made ready for an audit: found out once, used for every share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from softleak.errors import ModelError, SoftleakError, in_a_line
from softleak.head import Head
from softleak.inputs import accepted_shapes
from softleak.inversion.chain import Chain
from softleak.labels.batch import BatchReader
from softleak.labels.evidence.probes import probe
from softleak.labels.evidence.relation import Relation
from softleak.verify import find_head


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
        head_name: str | None = None,
    ) -> Subject:
        """Probe a model in its present mode; without ``inputs`` nobody will ask for the chain.

        Whoever names the head of a model whose input is not known vouches for it.
        """
        known = input_shape or next(accepted_shapes(model), None)
        vouched = head_name is not None and known is None
        head = Head.of(model, head_name) if vouched else find_head(model, head_name, input_shape)
        relations = _probed(model, head, input_shape) if known else ()
        subject = cls(model, head, relations, known, None, "inputs were not asked for")
        return with_chain(subject) if inputs else subject

    @cached_property
    def batch_reader(self) -> BatchReader:
        """What reads updates of several samples; made when the first of them comes."""
        return BatchReader.of(self.model, self.head, self.input_shape)


def _probed(model: nn.Module, head: Head, shape: tuple[int, ...] | None) -> tuple[Relation, ...]:
    """The evidence a model offers; none if its layers cannot be looked at one by one."""
    try:
        return probe(model, shape, head=head)
    except SoftleakError:
        raise
    except Exception:  # the model's own code may raise anything; the label needs the head alone
        return ()


def with_chain(subject: Subject) -> Subject:
    """The subject made ready for inversion as well, where its model is a chain."""
    if subject.input_shape is None:
        return replace(subject, no_chain="the shape of an input is not known; say it")
    try:
        chain = Chain.of(subject.model, subject.head, subject.input_shape)
    except ModelError as error:
        return replace(subject, no_chain=str(error))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        return replace(subject, no_chain=f"the network cannot be traced: {in_a_line(error)}")
    return replace(subject, chain=chain, no_chain="")
