"""The client: how a share is made from data, and which gradient a share of a client means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from softleak.core.errors import (
    DataError,
    LabelError,
    ModelError,
    NonFinite,
    OptionError,
    SoftleakError,
)
from softleak.core.forward import (
    TOKENS,
    batch_size,
    forward_one,
    gradients_of,
    logits_of,
    run_batch,
    tables_of,
    watched_tables,
)
from softleak.core.input_spec import Inputs, assembled, layout_of, pieces
from softleak.core.loss import CROSS_ENTROPY, IGNORED, Loss, NextToken, named_loss
from softleak.core.share import GradientShare, LocalTraining, Unknown, read_settings
from softleak.core.subject import Subject

Weights = dict[str, Tensor]
Minimised = Callable[[Tensor, Tensor], Tensor]  # logits (B, C) and labels (B, C) to a scalar


@dataclass(frozen=True, eq=False)
class LocalProgram:
    """A client's steps from given weights."""

    model: nn.Module  # the network; its own parameters and buffers are left alone
    loss: Minimised  # the function of logits (B, C) and labels (B, C) that is minimised
    training: LocalTraining  # the steps; nothing of it may be unknown
    frozen: Mapping[str, Tensor]  # parameters by name that are used but not trained
    # Names of parameters whose gradient does not exist; optimisers leave them alone.
    unused: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, model: nn.Module, loss: Minimised, training: LocalTraining, unused: Iterable[str] = ()
    ) -> LocalProgram:
        """Return the program of a client that trains what ``requires_grad`` says."""
        if training.unknowns or not training.trains:
            missing = ", ".join(training.unknowns) or "lr"
            raise OptionError(f"a client that runs needs to know its {missing}")
        frozen = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        return cls(model, loss, training, frozen, frozenset(unused))

    def run(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Weights:
        """Return the weights by name after the last step, on inputs (N, …) and labels (N, C)."""
        now, memory = dict(weights), dict[str, Any]()  # what the optimiser remembers, by parameter
        step = partial(_sgd if self.training.optimiser == "sgd" else _adam, self.training)
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for taken, batch in enumerate(self.training.batches(len(x), x.device), 1):
            # Indexing keeps batches differentiable; one full batch needs none.
            whole = len(batch) == len(x) and self.training.seed is None
            some, labels = (x, y) if whole else (x[batch], y[batch])
            slopes, buffers = grad(self._loss, has_aux=True)(now, buffers, some, labels)
            for name, g in slopes.items():
                if name not in self.unused:
                    now[name], memory[name] = step(taken, now[name], g, memory.get(name))
        return now

    def _loss(
        self, weights: Weights, buffers: Weights, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Weights]:
        # BatchNorm writes its statistics in place: into copies, which are the next step's.
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        logits = logits_of(functional_call(self.model, {**self.frozen, **weights, **own}, (x,)))
        if logits is None or logits.ndim != 2:
            came = "no tensor" if logits is None else f"a tensor of shape {tuple(logits.shape)}"
            raise ModelError(f"expected a model whose output is logits (B, C), got {came}")
        return self.loss(logits, y), own


def _sgd(
    training: LocalTraining, _: int, weight: Tensor, g: Tensor, memory: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return a weight after a step of SGD, and its momentum."""
    lr, momentum, decay = _rates(training)
    rule = SgdSteps(1, lr, momentum, training.dampening, decay, training.nesterov)
    moved, memory = rule.step(-weight, memory, g)
    return -moved, memory


def _adam(
    training: LocalTraining, taken: int, weight: Tensor, g: Tensor,
    memory: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """Return a weight after a step of Adam, and the means of its gradient and of the square."""
    lr, _, decay = _rates(training)
    if decay and training.optimiser == "adamw":
        weight = weight * (1 - lr * decay)
    elif decay:
        g = g + decay * weight
    m, v = memory or (torch.zeros_like(g), torch.zeros_like(g))
    b1, b2 = training.betas
    first, second = m + (g - m) * (1 - b1), b2 * v + (1 - b2) * g * g
    # The root has no slope at zero, where the step is zero as well.
    positive = second > 0
    root = torch.where(positive, second, 1.0).sqrt() / (1 - b2**taken) ** 0.5
    size = torch.where(positive, root, 0.0) + training.eps
    return weight - lr / (1 - b1**taken) * first / size, (first, second)


def _rates(training: LocalTraining) -> tuple[float, float, float]:
    """Return learning rate, momentum and weight decay, which ``LocalProgram.of`` made sure of."""
    known = training.lr, training.momentum, training.weight_decay
    return cast("tuple[float, float, float]", known)


ArrayLike: TypeAlias = Any  # a tensor, an array, a list of numbers; inputs also by keyword


@dataclass(frozen=True)
class Client(LocalTraining):
    """How a client turns its data into what it sends.

    Without a learning rate that is the gradient of its loss on one sample or batch. With one it
    trains, and sends ``before − after``: ``Client(lr=0.01, steps=5, momentum=0.9)``.

    Attributes:
        loss: what the client minimises: "ce", "bce", "mse", "next-token", a ``Loss``, or a
            function of logits (B, C) and soft labels (B, C) that averages over the batch, as those
            of torch do.
    """

    loss: Loss | Minimised | str = CROSS_ENTROPY

    @property
    def minimised(self) -> Minimised:
        """Return the loss as a function of logits (B, C) and labels (B, C)."""
        return named_loss(self.loss) if isinstance(self.loss, str) else self.loss

    @property
    def labelled(self) -> Loss:
        """Return the loss that says which labels may be; a function takes soft labels."""
        loss = self.minimised
        return loss if isinstance(loss, Loss) else CROSS_ENTROPY

    def share(self, model: nn.Module, x: ArrayLike, y: ArrayLike | None = None) -> GradientShare:
        """Return what this client sends for one sample or one batch.

        Parameters, ``.grad``, buffers and the train/eval mode of the model stay as they were. A
        soft label less precise than the model is first divided by its sum, so that its rounding
        does not enter: error bounds refer to the label so normalised.

        Args:
            model: the classifier, in the mode the client trains it in.
            x: one input, with or without a batch dimension of one, or a batch of inputs (B, …); a
                tensor, an array or a list, or a mapping of these by the model's keywords, such as
                ``{"input_ids": ids, "attention_mask": mask}``.
            y: a class index or a soft label (C,) of one sample; class indices (B,) or soft labels
                (B, C) of a batch. Under "bce" the zeros and ones (C,) of its labels, and under
                "mse" its targets (C,); a number, or numbers (B,), where the model has one output.
                Under "next-token" the token ids themselves, with −100 where none is predicted; by
                default those of the input, where its mask is not zero.

        Returns:
            The gradient by parameter name. That of one sample has the scale of its own loss; of a
            batch it is not stated, since some of its samples may not show. Of a client that trains,
            ``before − after``, with a note of how it was made.
        """
        trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise ModelError("the model has no trainable parameter: a client would send nothing")
        inputs, loss = _inputs(model, x), self.labelled
        if isinstance(loss, NextToken):
            inputs, y = _texts(inputs, y)
        given = _tensor(y, "the label", LabelError)
        some, own = self._shown(inputs, given) if self.trains else (inputs, given)
        with torch.enable_grad():
            with watched_tables(model) as lookups:
                logits, labels, batched = _forward(model, some, own, loss)
            layout = layout_of(batched, tables_of(lookups, batched))
            found = gradients_of(self.minimised(logits, labels), list(trainable.values()))
        sent = {n: g for n, g in zip(trainable, found, strict=True) if g is not None}
        if not self.trains:
            return GradientShare(sent, layout, scale="known" if len(logits) == 1 else None)
        if not isinstance(inputs, Tensor) or not isinstance(layout, tuple):
            raise DataError(
                "local training is simulated on one tensor of inputs; a model that takes "
                "tensors by keyword has to be wrapped in one that takes a single tensor"
            )
        left = given[len(labels) :] if own is not given else ()
        rest = [_label(one, logits, loss) for one in left]
        every = torch.stack([*labels.detach(), *rest])
        before = {name: p.detach() for name, p in trainable.items()}
        batch = inputs.reshape(len(every), *layout).to(next(iter(before.values())))
        unused = before.keys() - sent.keys()
        program = LocalProgram.of(model, self.minimised, self.training, unused)
        after = program.run(before, batch, every)
        made = GradientShare.from_update(before, after, client=self.training)
        return replace(made, input_shape=layout, scale="known")

    def _shown(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        """Return the samples that show which parameters take part: a first batch, or all."""
        size = self.batch_size
        if size is None or not isinstance(x, Tensor):
            return x, y
        several = y.ndim == 2 or (y.ndim == 1 and not y.is_floating_point() and int(y.sum()) != 1)
        if not several or len(x) != len(y) or len(y) <= size:
            return x, y
        return x[:size], y[:size]

    @classmethod
    def parse(cls, text: str) -> Client:
        """Return the client that a text such as ``lr=0.01,steps=5,momentum=?`` describes."""
        return cls(**read_settings(text))  # type: ignore[arg-type]


PLAIN = Client()  # its settings are checked once, and not in every run of a model


def capture(
    model: nn.Module, x: ArrayLike, y: ArrayLike | None = None,
    loss: Loss | Minimised | str = CROSS_ENTROPY,
) -> GradientShare:  # fmt: skip
    """Return the gradient of a loss, of a batch its mean, as ``Client(loss=loss)`` sends it.

    The other arguments are those of ``Client.share``.
    """
    client = PLAIN if loss == CROSS_ENTROPY else Client(loss=loss)
    return client.share(model, x, y)


def as_batch(model: nn.Module, x: ArrayLike, y: ArrayLike, loss: Loss) -> tuple[Inputs, Tensor]:
    """Return the inputs (B, …) and labels (B, C) that ``Client.share`` makes of its arguments."""
    with torch.no_grad():
        given = _inputs(model, x), _tensor(y, "the label", LabelError)
        _, labels, batched = _forward(model, *given, loss)
    return batched, labels


def _forward(model: nn.Module, x: Inputs, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Inputs]:
    """Return logits (B, C), labels (B, C) and the inputs as a batch; of texts (B, L, V), (B, L)."""
    if isinstance(loss, NextToken):
        logits, batched = run_batch(model, x, (TOKENS,))
        return logits, y.to(logits.device), batched
    several, perhaps_one = _of_several(x, y, loss)
    try:
        logits, batched = run_batch(model, x) if several else forward_one(model, x)
    except ModelError:
        if not perhaps_one:
            raise
        several, (logits, batched) = False, forward_one(model, x)
    labels = list(y) if several else [y[0] if y.ndim == 2 and len(y) == 1 else y]
    if len(labels) != len(logits):
        raise LabelError(
            f"expected a label for each of {len(logits)} inputs, got shape {tuple(y.shape)}"
        )
    return logits, torch.stack([_label(one, logits, loss) for one in labels]), batched


def _of_several(x: Inputs, y: Tensor, loss: Loss) -> tuple[bool, bool]:
    """Return whether labels are those of a batch, and whether they may be one label after all.

    Integers (B,) are the classes of a batch, or one label that is one-hot; and an input's first
    side may be as long as a label of several outputs. The model can tell.
    """
    size, rows = batch_size(x), len(y) if y.ndim else 0
    if not loss.balanced:
        several = rows != 1 and (y.ndim == 2 or (y.ndim == 1 and size == rows))
        return several, several and y.ndim == 1
    indices = y.ndim == 1 and rows != 1 and not y.is_floating_point()
    one_hot = indices and bool(y.sum() == 1) and bool((y >= 0).all())
    several = (y.ndim == 2 and rows != 1) or (indices and (not one_hot or size == rows))
    if several and (not rows or size != rows):
        shapes = " and ".join(str(tuple(tensor.shape)) for _, tensor in pieces(x))
        raise LabelError(
            f"expected as many labels as inputs, got labels of shape {tuple(y.shape)} and inputs "
            f"of shape {shapes}; one soft label has floating-point entries that sum to one"
        )
    return several, several and one_hot


def _texts(x: Inputs, y: ArrayLike | None) -> tuple[Inputs, Tensor]:
    """Return texts as a batch (B, L), and the tokens to predict: all that are not masked."""
    held = {keyword: t if t.ndim > 1 else t[None] for keyword, t in pieces(x)}
    ids = held.get("input_ids", next(iter(held.values())))
    if y is None:
        used = held.get("attention_mask", torch.ones_like(ids))
        return assembled(held), torch.where(used != 0, ids, IGNORED)
    wanted = _tensor(y, "the tokens to predict", LabelError).reshape(-1, ids.shape[-1])
    if wanted.shape != ids.shape or wanted.is_floating_point():
        raise LabelError(
            f"expected a token id for each of {tuple(ids.shape)} tokens, got {tuple(wanted.shape)}"
        )
    return assembled(held), wanted


def _label(given: Tensor, logits: Tensor, loss: Loss) -> Tensor:
    """Return the label as one (C,) of the loss, or raise ``LabelError``."""
    label, outputs = given.to(logits.device), logits.shape[1]
    index = label.ndim == 0 or (not label.is_floating_point() and label.shape == (1,))
    if loss.balanced and index:
        if label.is_floating_point() or not 0 <= int(label) < outputs:
            raise LabelError(f"expected a class index from 0 to {outputs - 1}, got {given.item()}")
        return F.one_hot(label.reshape(()).long(), outputs).to(logits.dtype)
    label = label.reshape(-1) if label.ndim == 0 else label
    if label.shape != (outputs,):
        raise LabelError(
            f"expected one label with an entry for each of {outputs} outputs, as {loss.name!r} "
            f"takes it, got shape {tuple(given.shape)}"
        )
    if not label.isfinite().all():
        raise NonFinite("the label holds NaN or infinity")
    loss.check(label)
    precise = torch.finfo(logits.dtype).eps
    if loss.balanced and label.is_floating_point() and torch.finfo(label.dtype).eps > precise:
        label = label.double() / label.double().sum()
    return label.to(logits.dtype)


def _inputs(model: nn.Module, x: object) -> Inputs:
    """Return the input as a tensor, or as tensors by keyword if it is more than real numbers."""
    if not isinstance(x, Mapping):
        return _tensor(x, "the input", DataError)
    if not x or not all(isinstance(keyword, str) and keyword for keyword in x):
        raise DataError(
            f"expected tensors by the model's keywords, such as input_ids, got {list(x)}"
        )
    held = {
        keyword: _tensor(given, f"the input {keyword!r}", DataError) for keyword, given in x.items()
    }
    ((keyword, only), *others) = held.items()
    first = next(iter(inspect.signature(model.forward).parameters), "")
    return only if not others and keyword == first and only.is_floating_point() else held


def _tensor(given: object, what: str, refusal: type[SoftleakError]) -> Tensor:
    """Return a tensor of whatever torch can make one of: arrays, lists, numbers."""
    try:
        return torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(given).__name__
        raise refusal(f"expected {what} as numbers, got {kind} ({error})") from error


Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class SgdSteps:
    """SGD with a known learning rate, as numbers."""

    steps: int
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    rates: tuple[float, ...] = ()  # the rate of each step over ``lr``; none if it stays

    @classmethod
    def of(cls, training: LocalTraining) -> SgdSteps | None:
        """Return the recipe of a client with one sample; None if it is not SGD, or not known."""
        steps = training.single_steps
        lr, momentum, decay = training.lr, training.momentum, training.weight_decay
        if training.optimiser != "sgd" or steps is None:
            return None
        if steps == 1 and not training.nesterov:
            momentum = 0.0  # the first step has no momentum yet
        if isinstance(lr, Unknown) or lr is None:
            return None
        if isinstance(momentum, Unknown) or isinstance(decay, Unknown):
            return None
        return cls(steps, lr, momentum, training.dampening, decay, training.nesterov)

    def at(self, step: int) -> SgdSteps:
        """Return the recipe with the rate of one step."""
        return replace(self, lr=self.lr * self.rates[step], rates=()) if self.rates else self

    def step(self, moved: Number, memory: Number | None, slope: Number) -> tuple[Number, Number]:
        """Return ``before − now``, less the decay of ``before``, after a step, and momentum."""
        if self.weight_decay:
            slope = slope - self.weight_decay * moved
        if not self.momentum:  # dampening is of the momentum, and without one there is none
            return moved + self.lr * slope, slope
        memory = slope if memory is None else self.momentum * memory + (1 - self.dampening) * slope
        ahead = slope + self.momentum * memory if self.nesterov else memory
        return moved + self.lr * ahead, memory

    def step_in_place(self, moved: Tensor, memory: Tensor | None, slope: Tensor) -> Tensor:
        """Take one more ``step`` in the memory of all arguments; return the momentum."""
        if self.weight_decay:
            slope.sub_(moved, alpha=self.weight_decay)
        if not self.momentum:
            moved.add_(slope, alpha=self.lr)
            return slope
        if memory is not None:
            memory = memory.mul_(self.momentum).add_(slope, alpha=1 - self.dampening)
        else:
            memory = slope.clone() if self.nesterov else slope
        if self.nesterov:
            moved.add_(slope, alpha=self.lr).add_(memory, alpha=self.lr * self.momentum)
        else:
            moved.add_(memory, alpha=self.lr)
        return memory

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """Return the part of the first weights that is left before each step, and at the end."""
        moved, memory, found = -1.0, None, [1.0]
        for k in range(self.steps):
            moved, memory = self.at(k).step(moved, memory, 0.0)
            found.append(-moved)
        return tuple(found)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """Return how much the gradient of each step counts in the update."""
        moved = [0.0] * self.steps
        for one in range(self.steps):
            memory = None
            for k in range(self.steps):
                moved[one], memory = self.at(k).step(moved[one], memory, float(k == one))
        return tuple(moved)

    @property
    def total(self) -> float:
        """Return ``κ``, the sum of the weights of all steps."""
        return sum(self.weights)


def as_gradient(subject: Subject, share: GradientShare) -> GradientShare:
    """Return the gradient that a share means, which the share remembers.

    A share that is a gradient means itself. Of SGD with a known learning rate it is the mean
    gradient of all steps; of one step, the gradient itself. Of any other training it is
    ``before − after``, taken for a gradient of unknown scale.
    """
    if share.made_by is None:
        return share
    recipe = SgdSteps.of(share.made_by)
    if recipe is None:
        return share.once(as_gradient, lambda: replace(share, made_by=None, scale="unknown"))
    return share.once((as_gradient, subject), lambda: mean_gradient(subject, share, recipe))


def mean_gradient(subject: Subject, share: GradientShare, recipe: SgdSteps) -> GradientShare:
    """Return the weighted mean of the gradients of all steps: of one step, the gradient itself."""
    lost, total = 1 - recipe.kept[-1], recipe.total

    def undo(name: str, update: Tensor) -> Tensor:
        weight = subject.parameters.get(name)
        if weight is None or not lost or not update.any():
            return update.double() / total
        # What was not trained did not decay either: an update of zeros stays one.
        return (update.double() - lost * weight.detach().to(update.device).double()) / total

    rounding = {name: error / total for name, error in share.rounding.items()}
    changed = {name: undo(name, update) for name, update in share.items()}
    return replace(share, gradients=changed, rounding=rounding, made_by=None)


def mean_of_head(subject: Subject, share: GradientShare, recipe: SgdSteps) -> GradientShare:
    """Return the mean gradient of the head alone, which costs far less than that of all layers."""
    own = (subject.head.weight_name, subject.head.bias_name)
    return mean_gradient(subject, share.without(*(n for n in share if n not in own)), recipe)
