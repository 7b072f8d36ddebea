"""The chain of layers behind a model, traced once; or the reason why there is none."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from softleak.core.errors import ModelError, in_a_line
from softleak.core.forward import forward_one
from softleak.core.head import Head
from softleak.core.subject import Subject
from softleak.inversion.conv.layer import MOST_INPUTS, Conv
from softleak.inversion.conv.rows import Geometry, padding_of
from softleak.inversion.results import NoWay
from softleak.inversion.steps import (
    REMEDY,
    ActivationStep,
    Affine,
    Linear,
    Pool,
    Reshape,
    Step,
    inverse_of,
)

SHAPE = "softleak_shape"  # where a node that gives a tensor holds its shape
MODES = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def path_back(model: nn.Module, input_shape: tuple[int, ...]) -> list[fx.Node]:
    """Return the nodes from the output to the input of a model in eval mode.

    Raises:
        ModelError: If the model cannot be traced, is in train mode or branches.
    """
    for name, module in model.named_modules():
        check_mode(name, module)
    graph = _traced(model)
    like = next(model.parameters())
    with torch.no_grad():
        forward_one(model, torch.zeros(input_shape))  # it names a wrong shape
        _Shapes(graph).run(like.new_zeros(1, *input_shape))
    node = next(n for n in graph.graph.nodes if n.op == "output")
    path = []
    while node.op != "placeholder":
        node = _only_input(node)
        path.append(node)
    return path


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor, without the batch."""
    shape: tuple[int, ...] = node.meta[SHAPE][1:]
    return shape


def check_mode(name: str, module: nn.Module) -> None:
    """Refuse a layer in train mode, if it computes something else there than in eval mode."""
    if isinstance(module, MODES) and module.training:
        raise ModelError(
            f"cannot walk back through {name} ({type(module).__name__}) in train mode; if the "
            f"client computed its gradient in eval mode call model.eval(), else {REMEDY}"
        )


class _Shapes(fx.Interpreter):
    """Runs a graph and notes the shape of every tensor, of a tuple that of the first one.

    PyTorch's own class for it loads a library for symbolic mathematics, which takes two seconds.
    """

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401 - whatever a model computes
        found = super().run_node(n)
        several = found if isinstance(found, tuple | list) else (found,)
        tensors = [one for one in several if isinstance(one, Tensor)]
        if tensors:
            n.meta[SHAPE] = tuple(tensors[0].shape)
        return found


class _Tracer(fx.Tracer):
    """Takes a layer as PyTorch's own if its forward is, whatever its class is."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = type(m).forward.__module__.startswith("torch.nn")
        return own and not isinstance(m, nn.Sequential)


def _traced(model: nn.Module) -> fx.GraphModule:
    """Return the model's graph, or say why it has none."""
    try:
        return fx.GraphModule(model, _Tracer().trace(model))
    except Exception as error:  # a forward that branches on its input fails in its own way
        why = in_a_line(error)
        raise ModelError(f"the model's forward cannot be traced ({why}); {REMEDY}") from error


def _only_input(node: fx.Node) -> fx.Node:
    """Return the node whose tensor a node works on.

    Sizes and the model's own tensors do not count.
    """
    inputs, users = (
        [n for n in some if n.op == "output" or (n.op != "get_attr" and SHAPE in n.meta)]
        for some in (node.all_input_nodes, node.users)
    )
    if len(inputs) != 1 or len(users) > 1:
        raise ModelError(
            f"the network is not a plain sequence of layers: it branches at {called(node)} "
            f"({node.name}), so that it cannot be inverted layer by layer; {REMEDY}"
        )
    return inputs[0]


def called(node: fx.Node) -> str:
    """Return the name of what a node calls."""
    return str(getattr(node.target, "__name__", node.target))


# Functions and modules take their settings by the same names and in the same order.
MODULES: Mapping[Callable[..., Any] | str, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU, F.relu: nn.ReLU, "relu": nn.ReLU,
    torch.sigmoid: nn.Sigmoid, F.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    torch.tanh: nn.Tanh, F.tanh: nn.Tanh, "tanh": nn.Tanh,
    torch.selu: nn.SELU, F.selu: nn.SELU, torch.celu: nn.CELU, F.celu: nn.CELU, F.elu: nn.ELU,
    F.leaky_relu: nn.LeakyReLU, F.softplus: nn.Softplus, F.softsign: nn.Softsign,
    F.logsigmoid: nn.LogSigmoid,
    F.dropout: nn.Dropout, F.dropout2d: nn.Dropout2d,
    F.avg_pool2d: nn.AvgPool2d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}  # fmt: skip
# Minus one stands for the inverse operation: a difference or a quotient.
SUMS: Mapping[Callable[..., Any] | str, int] = {
    operator.add: 1, torch.add: 1, operator.sub: -1, torch.sub: -1,
}  # fmt: skip
PRODUCTS: Mapping[Callable[..., Any] | str, int] = {
    operator.mul: 1, torch.mul: 1, operator.truediv: -1, torch.div: -1,
}  # fmt: skip


def as_module(node: fx.Node) -> nn.Module | None:
    """Return the module that a call of a function or method stands for.

    It is None if there is none, or if its settings are themselves computed tensors.
    """
    settings = {name: value for name, value in node.kwargs.items() if name != "input"}
    training = bool(settings.pop("training", False))
    if node.target not in MODULES or len(node.all_input_nodes) != 1:
        return None
    return MODULES[node.target](*node.args[1:], **settings).train(training)


def as_affine(model: nn.Module, node: fx.Node, before: tuple[int, ...]) -> Affine | None:
    """Return a sum or product with a constant as a step, such as a model that normalises inputs.

    It is None if the node is no such operation, or changes the shape ``before`` of its input.
    """
    known = node.target in SUMS or node.target in PRODUCTS
    if not known or len(node.args) != 2 or node.kwargs or shape_of(node) != before:
        return None
    first = _constant(model, node.args[0], before)
    other = _constant(model, node.args[1], before) if first is None else first
    if other is None:
        return None
    one = torch.ones_like(other)
    if node.target in SUMS:
        sign = SUMS[node.target]
        parts = (one, sign * other) if first is None else (sign * one, other)
        return Affine(node.name, *parts)
    power = PRODUCTS[node.target]
    return None if first is not None and power < 0 else Affine(node.name, other**power, 0 * one)


def _constant(model: nn.Module, given: object, before: tuple[int, ...]) -> Tensor | None:
    """Return an operand that is a number or a tensor of the model, broadcast to one input.

    None stands for an operand that the walk has to recover.
    """
    if isinstance(given, fx.Node):
        if given.op != "get_attr":
            return None
        given = operator.attrgetter(str(given.target))(model)
    value = torch.as_tensor(given).detach().double()
    return torch.broadcast_to(value, (1, *before))[0]


RESHAPES = {torch.flatten, "flatten", "view", "reshape", torch.reshape}


def step_of(model: nn.Module, node: fx.Node, before: tuple[int, ...]) -> Step:
    """Return the step behind a node with one input tensor, of the shape ``before``.

    Raises:
        ModelError: If the node cannot be walked back through.
    """
    name, after = str(node.target), shape_of(node)
    if node.op == "call_module":
        return _module_step(name, model.get_submodule(name), before, after)
    module = as_module(node)
    if module is not None:
        check_mode(node.name, module)
        return _module_step(node.name, module, before, after)
    affine = as_affine(model, node, before)
    if affine is not None:
        return affine
    if node.target in RESHAPES and math.prod(after) == math.prod(before):
        return Reshape(node.name, before, after)
    raise ModelError(
        f"cannot walk back through {node.name} ({called(node)}): softleak has no exact inverse of "
        f"it; {REMEDY}"
    )


def _module_step(
    name: str, module: nn.Module, before: tuple[int, ...], after: tuple[int, ...]
) -> Step:
    """Return the step of a module, for inputs and outputs of one shape."""
    phi = inverse_of(module)
    if phi is not None:
        return ActivationStep(name, phi)
    match module:
        case nn.Linear() if len(before) == 1:
            return Linear(name, module.weight.detach(), module.bias is not None)
        case nn.Conv2d() if _can_invert(name, module, before):
            return Conv(name, module, Geometry.of(module, (before[1], before[2])))
        case nn.BatchNorm2d() | nn.BatchNorm1d() if module.running_mean is not None:
            return Affine.of(name, module, before)
        case nn.Flatten() | nn.Identity() | nn.Dropout() | nn.Dropout2d():
            return Reshape(name, before, after)
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            return Pool.of(name, module, before)
        case _:
            kind = type(module).__name__
            raise ModelError(
                f"cannot walk back through {name} ({kind}) with inputs of shape {before}: softleak "
                f"has no exact inverse of it; {REMEDY}"
            )


def _can_invert(name: str, layer: nn.Conv2d, before: tuple[int, ...]) -> bool:
    """Tell whether a convolution's input is (C, H, W), and refuse what cannot be solved."""
    if layer.padding_mode != "zeros" or padding_of(layer) is None:
        raise ModelError(
            f"cannot walk back through {name} (Conv2d): expected zero padding, the same on both "
            f"sides, got {layer.padding_mode}, {layer.padding!r}; {REMEDY}"
        )
    if math.prod(before) > MOST_INPUTS:
        raise ModelError(
            f"cannot walk back through {name} (Conv2d): expected at most "
            f"{MOST_INPUTS} inputs, got {math.prod(before)}; {REMEDY}"
        )
    return len(before) == 3


LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, "log_softmax"}


@dataclass(frozen=True, eq=False)
class Chain:
    """A model prepared for inversion."""

    head: Head  # the model's last linear layer
    steps: tuple[Step, ...]  # the layers before the head, from the last to the first

    @classmethod
    def of(cls, model: nn.Module, head: Head, input_shape: tuple[int, ...]) -> Chain:
        """Return a model in eval mode, prepared for any number of shares of inputs of one shape.

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
        return cls(head, tuple(steps))

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


def chain_of(subject: Subject) -> Chain | NoWay:
    """Trace a subject's model as a chain of layers, or say what stands in the way."""
    shape = subject.tensor_shape
    if subject.input_shape is None:
        return NoWay("the shape of an input is not known; say it")
    if shape is None:
        return NoWay("the input is not one tensor of real numbers, so it cannot be walked back to")
    try:
        return Chain.of(subject.model, subject.head, shape)
    except ModelError as error:
        return NoWay(str(error))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        return NoWay(f"the network cannot be traced: {in_a_line(error)}")
