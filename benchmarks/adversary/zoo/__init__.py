"""All strangers, in the order of the tables."""

from __future__ import annotations

from benchmarks.adversary.stranger import Stranger
from benchmarks.adversary.zoo.heads import HEADS
from benchmarks.adversary.zoo.hugging_face import HUGGING_FACE
from benchmarks.adversary.zoo.images import IMAGES
from benchmarks.adversary.zoo.outputs import OUTPUTS
from benchmarks.adversary.zoo.sequences import SEQUENCES
from benchmarks.adversary.zoo.vectors import VECTORS

ZOO: tuple[Stranger, ...] = (*HUGGING_FACE, *HEADS, *OUTPUTS, *IMAGES, *VECTORS, *SEQUENCES)
