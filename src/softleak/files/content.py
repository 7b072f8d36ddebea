"""What a file holds, and the facts softleak writes beside the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from softleak.errors import FileError
from softleak.precheck import checked_shape

META = "softleak"  # where our own facts about a share live inside each format


@dataclass(frozen=True)
class Content:
    """What a file holds: tensors by name, and the facts softleak wrote beside them.

    The facts mean what the fields of ``GradientShare`` with the same names mean. ``remarks`` say
    which part of the file was taken, where it holds more than one set of weights.
    """

    tensors: Mapping[str, Tensor]
    input_shape: tuple[int, ...] | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)
    scale: str | None = None
    precision: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def facts(self) -> str:
        """Everything but the tensors, as it is written beside them."""
        return json.dumps(
            {
                "input_shape": self.input_shape, "rounding": dict(self.rounding),
                "scale": self.scale, "precision": self.precision,
            }
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], meta: str, remarks: tuple[str, ...]) -> Content:
        """Tensors with the facts beside them, checked as if a stranger had written them."""
        facts = json.loads(meta) if meta else {}
        told = {name: facts.get(name) for name in ("scale", "precision")}
        if any(value is not None and not isinstance(value, str) for value in told.values()):
            raise FileError(f"its facts should be words, got {told}")
        rounding = {str(k): float(v) for k, v in facts.get("rounding", {}).items()}
        shape = checked_shape(facts.get("input_shape"))
        return cls(tensors, shape, rounding, **told, remarks=remarks)
