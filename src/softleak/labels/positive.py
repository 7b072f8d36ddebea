"""Whether features cannot be negative, by the operations that they come from.

Runs on random inputs cannot prove it: GELU, ELU and tanh are hardly ever negative behind a pooling
of maxima, or on quiet inputs. The graph that autograd records of a run names the operations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from softleak.core.forward import forward_one, random_input, seeded
from softleak.core.subject import Subject
from softleak.numerics.recorder import recorded_inputs

Node = Any  # a node of autograd's graph, whose class has no public name
NEVER = frozenset({"Relu", "Sigmoid", "Softmax", "Softplus", "Abs", "Exp", "Square"})
# What leaves entries as they are, picks among them, or averages them.
KEEPS = frozenset({
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Permute", "Transpose",
    "T", "Select", "Slice", "Expand", "Clone", "ToCopy", "Mean", "Sum", "Max", "Amax", "AvgPool1D",
    "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "MaxPool2DWithIndices",
    "MaxPool3DWithIndices", "AdaptiveMaxPool2D", "Cat", "Stack", "NativeDropout", "Contiguous",
    "Alias", "SplitWithSizes", "Split", "Index", "IndexSelect", "Gather", "Flip", "ConstantPadNd",
})  # fmt: skip
PRODUCTS = frozenset({"Mul", "Add"})  # of two factors or terms that are never negative


def never_negative(subject: Subject) -> bool:
    """Return whether no feature before the head can be negative, whatever the input."""
    shape = subject.input_shape
    if shape is None:
        return False
    generator = torch.Generator().manual_seed(0)
    try:
        with seeded(0, subject.head.W), torch.enable_grad():
            model = copy.deepcopy(subject.model).requires_grad_()  # frozen layers leave no graph
            with recorded_inputs(model, subject.head.name) as entered:
                forward_one(model, random_input(shape, 0, generator))
    except Exception:  # the model's own code may raise anything
        return False
    calls = entered[subject.head.name]
    return bool(calls) and _never(calls[-1].grad_fn)


def _never(node: Node) -> bool:
    """Return whether what a node computes is never negative."""
    if node is None:
        return False
    name = type(node).__name__.removesuffix("0").removesuffix("1").removesuffix("Backward")
    if name in NEVER or (name in BOUNDED and BOUNDED[name](node)):
        return True
    before = [one for one, _ in node.next_functions if one is not None]
    if name in KEEPS:
        return bool(before) and all(map(_never, before))
    both = len(before) == len(node.next_functions) == 2
    plain = getattr(node, "_saved_alpha", 1) == 1
    return name in PRODUCTS and both and plain and all(map(_never, before))


BOUNDED: Mapping[str, Callable[[Node], bool]] = {
    "Hardtanh": lambda node: node._saved_min_val >= 0,
    "Clamp": lambda node: node._saved_min is not None and node._saved_min >= 0,
    "ClampMin": lambda node: node._saved_min >= 0,
    "Pow": lambda node: float(node._saved_exponent) % 2 == 0,
    "Hardsigmoid": lambda node: True,
}
