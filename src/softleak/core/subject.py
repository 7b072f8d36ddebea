"""The model under attack, made ready once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.forward import accepted_shapes
from softleak.core.head import Head, find_head
from softleak.core.input_spec import Layout, Shape

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with its verified head, and whatever attacks prepare of it once.

    Every attack is a function of a subject, a share and what is known. What an attack needs of the
    model alone (the evidence its layers offer, the chain of its layers, its usual features) is
    computed by a function of the subject and remembered: ``subject.once(evidence_of)``.

    Attributes:
        model: the classifier, in the mode the client used. Nothing of it is changed.
        head: its last linear layer.
        said_shape: the shape of one input without the batch dimension, or the specification of
            an input by keyword, if the caller states it.
    """

    model: nn.Module
    head: Head
    said_shape: Layout | None = None
    _made: dict[Callable[[Subject], Any], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, model: nn.Module, input_shape: Layout | None = None, *, head: str | Head | None = None
    ) -> Subject:
        """Find the head of a model and verify it on random inputs.

        Args:
            model: the classifier, in the mode the client used.
            input_shape: the shape or specification of one input; by default the first usual one
                that the model accepts.
            head: the name of the last linear layer, if it is not to be found. A ``Head`` is taken
                at its word: the caller states that it is one.

        Raises:
            HeadNotFound: if no linear layer does what the attacks assume.
        """
        if not isinstance(head, Head):
            head = find_head(model, head, input_shape)
        return cls(model, head, input_shape)

    @cached_property
    def shapes(self) -> tuple[Layout, ...]:
        """Return the stated shape, or the first two of the usual ones that the model accepts."""
        if self.said_shape is not None:
            return (self.said_shape,)
        return tuple(islice(accepted_shapes(self.model), 2))

    @property
    def input_shape(self) -> Layout | None:
        """Return the layout of one input as it was stated, or guessed; None if it is not known."""
        return self.shapes[0] if self.shapes else None

    @property
    def tensor_shape(self) -> Shape | None:
        """Return the shape of one input if that is one tensor of real numbers; else None."""
        return self.input_shape if isinstance(self.input_shape, tuple) else None

    @property
    def expected_tensor_shape(self) -> Shape:
        """Return the shape of one input; raises ``ModelError`` unless it is a single tensor."""
        if not isinstance(self.expected_shape, tuple):
            raise ModelError("expected a model that takes a single tensor of numbers")
        return self.expected_shape

    @property
    def expected_shape(self) -> Layout:
        """Return the layout of one input; raises ``ModelError`` if it is not known."""
        if self.input_shape is None:
            raise ModelError(
                "could not tell which input the model takes; pass input_shape, such as (3, 32, 32)"
            )
        return self.input_shape

    @cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        return dict(self.model.named_parameters())

    def once(self, make: Callable[[Subject], Made]) -> Made:
        """Return ``make(self)``, computed at the first call and remembered."""
        if make not in self._made:
            self._made[make] = make(self)
        found: Made = self._made[make]
        return found

    def given(self, make: Callable[[Subject], object], made: object) -> Subject:
        """Return a subject that remembers ``made`` as what ``make`` computes."""
        return replace(self, _made={**self._made, make: made})
