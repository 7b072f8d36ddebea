"""This module turns a model into a chain of steps that can be walked back.

A model with any other layer, or with branches, is refused, and the message names the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import fx, nn

from softleak.errors import ModelError
from softleak.head import Head
from softleak.inversion.activation_step import ActivationStep
from softleak.inversion.chain_steps import step_of
from softleak.inversion.conv import Conv
from softleak.inversion.graph import path_back, shape_of
from softleak.inversion.linear import Linear
from softleak.inversion.lossless import Affine, Reshape
from softleak.inversion.pool import Pool
from softleak.inversion.step import REMEDY, Step

LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, "log_softmax"}


@dataclass(frozen=True, eq=False)
class Chain:
    """This is a model prepared for inversion.

    Attributes:
        head: The model's last linear layer.
        steps: The layers before the head, from the last to the first.
    """

    head: Head
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, model: nn.Module, head: Head, input_shape: tuple[int, ...]) -> Chain:
        """Prepare a model for inputs of one shape.

        Args:
            model: The model, in eval mode.
            head: Its last linear layer.
            input_shape: The input's shape without the batch, such as (C, H, W).

        Returns:
            The chain, which serves any number of shares.

        Raises:
            ModelError: If the model is not a sequence of layers that can be walked back.
        """
        path = path_back(model, input_shape)
        if _is_log_softmax(model, path[0]):
            path = path[1:]
        if path[0].op != "call_module" or str(path[0].target) != head.name:
            raise ModelError(
                f"expected the model's output to come from the head {head.name!r}, but it comes "
                f"from {path[0].name}; pass the head that computes the output, or {REMEDY}"
            )
        _check_sharing(model, path)
        steps: list[Step] = []
        for node, before in pairwise(path[1:]):
            step = step_of(model, node, shape_of(before))
            _check_order(step, steps)
            steps.append(step)
        return cls(head, tuple(_with_lowest_marked(steps)))

    @property
    def passes(self) -> tuple[tuple[Step, ...], ...]:
        """Return the steps of each pass: the quick one, if there is one, then the thorough one."""
        quick = tuple(
            replace(s, quick=True) if isinstance(s, Conv) and not s.quick else s for s in self.steps
        )
        return (self.steps,) if quick == self.steps else (quick, self.steps)


def _is_log_softmax(model: nn.Module, node: fx.Node) -> bool:
    """Tell whether a node computes a log-softmax, which changes no gradient of the logits."""
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), nn.LogSoftmax)
    return node.target in LOG_SOFTMAX


def _check_sharing(model: nn.Module, path: list[fx.Node]) -> None:
    """Refuse parameters that are used twice: their gradient is a sum that tells neither term."""
    seen: set[int] = set()
    for name in (str(node.target) for node in path if node.op == "call_module"):
        used = {id(parameter) for parameter in model.get_submodule(name).parameters()}
        if used & seen:
            raise ModelError(
                f"the parameters of {name!r} are used more than once, so that their gradient is "
                f"the sum over all uses; {REMEDY}"
            )
        seen |= used


def _check_order(step: Step, above: list[Step]) -> None:
    """Refuse averages of an activation's outputs: they do not tell the single outputs."""
    telling = [s for s in above if not isinstance(s, Reshape | Affine)]
    last = telling[-1] if telling else None
    if isinstance(step, ActivationStep) and isinstance(last, Pool) and not last.injective:
        raise ModelError(
            f"cannot walk back through {last.name}: it averages the outputs of an activation "
            f"({step.name}), which are then not known one by one; {REMEDY}"
        )


def _with_lowest_marked(steps: list[Step]) -> list[Step]:
    """Return the steps, the lowest solving one marked: no layer below needs what it hands down."""
    heavy = [i for i, step in enumerate(steps) if isinstance(step, Linear | Conv)]
    last = steps[heavy[-1]] if heavy else None
    if isinstance(last, Linear | Conv):
        steps[heavy[-1]] = replace(last, lowest=True)
    return steps
