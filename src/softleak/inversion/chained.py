"""The chain of a subject, found once; or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.errors import ModelError, in_a_line
from softleak.inversion.chain import Chain
from softleak.subject import Subject


@dataclass(frozen=True)
class NoChain:
    """This says why a model cannot be walked back layer by layer."""

    reason: str


def chain_of(subject: Subject) -> Chain | NoChain:
    """Trace a subject's model as a chain of layers, or say what stands in the way."""
    shape = subject.tensor_shape
    if shape is None:
        unknown = subject.input_shape is None
        return NoChain(
            "the shape of an input is not known; say it"
            if unknown
            else "the input is not one tensor of real numbers, so it cannot be walked back to"
        )
    try:
        return Chain.of(subject.model, subject.head, shape)
    except ModelError as error:
        return NoChain(str(error))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        return NoChain(f"the network cannot be traced: {in_a_line(error)}")
