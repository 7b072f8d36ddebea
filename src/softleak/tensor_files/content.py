"""This module holds what a file holds, and the facts softleak writes beside the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from softleak.errors import FileError
from softleak.input_spec import InputPart, InputSpec, Layout
from softleak.untrusted_files import checked_shape

META = "softleak"  # where our own facts about a share live inside each format
MOST_PARTS = 16  # tensors of one input
MOST_ROWS = 1 << 28  # of a table of embeddings


@dataclass(frozen=True)
class Content:
    """This is what a file holds.

    The facts mean what the fields of ``GradientShare`` with the same names mean.

    Attributes:
        tensors: the tensors by name.
        input_shape: the shape or the specification of one input, if the file records it.
        rounding: an absolute error per entry, by name.
        scale: "known" or "unknown", if the file says it.
        precision: the number format the client computed in, if the file says it.
        client: the local training behind the tensors, as ``made_by`` of a share writes it.
        remarks: which part of the file was taken, where it holds more than one set of weights.
    """

    tensors: Mapping[str, Tensor]
    input_shape: Layout | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)
    scale: str | None = None
    precision: str | None = None
    client: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def facts(self) -> str:
        """Return everything but the tensors, as it is written beside them."""
        return json.dumps(
            {
                "input_shape": _written(self.input_shape), "rounding": dict(self.rounding),
                "scale": self.scale, "precision": self.precision, "client": self.client,
            }
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], meta: str, remarks: tuple[str, ...]) -> Content:
        """Return tensors with the facts beside them, checked as if a stranger had written them."""
        facts = json.loads(meta) if meta else {}
        told = {name: facts.get(name) for name in ("scale", "precision", "client")}
        if any(value is not None and not isinstance(value, str) for value in told.values()):
            raise FileError(f"its facts should be words, got {told}")
        rounding = {str(k): float(v) for k, v in facts.get("rounding", {}).items()}
        shape = _read(facts.get("input_shape"))
        return cls(tensors, shape, rounding, **told, remarks=remarks)


def _written(layout: Layout | None) -> object:
    """Return a layout as JSON can hold it: a list of sizes, or the parts of a specification."""
    if not isinstance(layout, InputSpec):
        return layout
    return {"parts": [[p.keyword, p.shape, p.integer, p.below] for p in layout.parts]}


def _read(held: object) -> Layout | None:
    """Return the layout that a file claims; raises ``FileError`` if it is not a possible one."""
    if not isinstance(held, dict):
        return checked_shape(held)
    parts = held.get("parts")
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_PARTS:
        raise FileError(f"its input should have from 1 to {MOST_PARTS} parts")
    return InputSpec(tuple(_read_part(part) for part in parts))


def _read_part(part: object) -> InputPart:
    if not isinstance(part, list) or len(part) != 4:
        raise FileError(f"a part of its input should have a name, sizes and a kind, got {part!r}")
    keyword, sizes, integer, below = part
    named = isinstance(keyword, str) and (not keyword or keyword.isidentifier())
    counted = below is None or (type(below) is int and 0 < below <= MOST_ROWS)
    if not named or not isinstance(integer, bool) or not counted:
        raise FileError(f"a part of its input is not one that a model takes: {part!r}")
    return InputPart(keyword, checked_shape(sizes) or (), integer, below)
