"""The gradient as a function of inputs and labels, and many reconstructions as one problem each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from softleak.core.errors import ModelError, OptionError, in_a_line
from softleak.core.forward import forward_one, logits_of, recorded_inputs, watched
from softleak.core.head import Head, float64_blocks, times_vector, vector_times
from softleak.core.loss import CROSS_ENTROPY, Loss
from softleak.core.subject import Subject


def loss_of(_: Subject) -> Loss:
    """Return what a subject's clients minimise, where nothing else was found or given."""
    return CROSS_ENTROPY


@dataclass(frozen=True, eq=False)
class DifferentiableModel:
    """A private copy of a model whose gradients can be differentiated by the input."""

    model: nn.Module  # the copy. Batches of independent samples may run through it under ``vmap``
    parameters: dict[str, Tensor]  # its parameters by name, detached
    head: Head  # its last linear layer
    plain: bool = False  # whether autograd takes the gradients: some models cannot be vectorised
    minimised: Loss = CROSS_ENTROPY  # what clients minimise

    @classmethod
    def of(
        cls, model: nn.Module, head: Head, dtype: torch.dtype, minimised: Loss = CROSS_ENTROPY
    ) -> DifferentiableModel:
        """Copy a model in a dtype; batch normalisation in train mode sees one sample only."""
        own = copy.deepcopy(model).to(dtype)
        for name, module in own.named_modules():
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training:
                raise ModelError(
                    f"{name} ({type(module).__name__}) is in train mode: nobody knows which "
                    "entries the client dropped, and with others no gradient matches; call "
                    "model.eval() to match as if none had been"
                )
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        parameters = {name: p.detach() for name, p in own.named_parameters()}
        return cls(own, parameters, head, minimised=minimised)

    @property
    def like(self) -> Tensor:
        """A parameter, whose dtype and device all tensors of a problem have."""
        return next(iter(self.parameters.values()))

    def gradient(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return ``∂L/∂θ`` by name, for one input and its label (C,), or for a batch (B, C)."""
        return self.differentiated(lambda values: (self.loss(values, x, y), {}), self.parameters)[0]

    def gradient_and_feature(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return ``∂L/∂θ`` by name, and the feature that enters the head: (I,), or (B, I)."""
        with recorded_inputs(self.model, self.head.name) as recorded:
            seen = recorded[self.head.name]

            def loss(parameters: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
                found = self.loss(parameters, x, y)
                return found, {"feature": seen[-1] if y.ndim > 1 else seen[-1][0]}

            found, beside = self.differentiated(loss, self.parameters)
        return found, beside["feature"]

    def differentiated(
        self,
        loss: Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]],
        values: dict[str, Tensor],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradient of a loss by named values, and what the loss returns beside it."""
        if not self.plain:
            slopes: tuple[dict[str, Tensor], dict[str, Tensor]] = grad(loss, has_aux=True)(values)
            return slopes
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        total, beside = loss(leaves)
        found = torch.autograd.grad(
            total, list(leaves.values()), create_graph=True, allow_unused=True
        )
        pairs = zip(leaves.items(), found, strict=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs}, beside

    def loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of one input with its label (C,), or of a batch (B, C)."""
        batch = x if y.ndim > 1 else x[None]
        logits = logits_of(functional_call(self.model, parameters, (batch,)))
        if logits is None:
            raise ModelError(
                f"expected logits of shape ({len(batch)}, classes), the output is not a tensor"
            )
        if self.minimised == CROSS_ENTROPY:
            return -(torch.log_softmax(logits, -1) * y).sum(-1).mean()
        return self.minimised(logits, y if y.ndim > 1 else y[None])


def count_activations(model: DifferentiableModel, x: Tensor) -> int:
    """Return the number of entries of all layers' outputs for one input (1, …)."""
    count = 0

    def add(_: str, __: object, output: object) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    def restart(_: str, __: object) -> None:
        nonlocal count
        count = 0  # an input of one channel may first be tried without its batch dimension

    leaves = {n: m for n, m in model.model.named_modules() if not any(True for _ in m.children())}
    with watched(leaves, after=add), watched({"": model.model}, before=restart), torch.no_grad():
        forward_one(model.model, x[0])
    return count


def compiled(
    function: Callable[..., tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the function compiled at its first call, which is when compiling may fail."""
    from torch._dynamo.exc import TorchDynamoException  # takes a second to import

    torch.compiler.reset()  # or what was compiled for other problems counts against a limit
    fast = torch.compile(function, dynamic=False)

    def run(*given: object) -> tuple[Tensor, Tensor]:
        try:
            return fast(*given)
        except TorchDynamoException as error:
            raise OptionError(
                f"gradient matching could not be compiled ({in_a_line(error)}); go without "
                "compiling, or install a C++ compiler"
            ) from error

    return run


FEWEST_ENTRIES = 1 << 18  # a smaller weight is compared entry by entry, which costs little
ROUNDINGS = 8.0  # by which a gradient that was sent may be off an outer product
TOLERANCE = 1e-4  # how far, relative to its size, the gradient of a layer may be off its own


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """A model whose gradients of some linear layers are the factors δ and x, in a row (C + I,)."""

    model: DifferentiableModel  # the function from input and label to gradient
    layers: tuple[str, ...]  # the names of these layers, each of which acts once, on one row

    @classmethod
    def of(cls, model: DifferentiableModel, shape: tuple[int, ...]) -> OuterProducts:
        """Return a model with the large linear layers whose gradients are outer products."""
        large = tuple(
            name
            for name, module in model.model.named_modules()
            if type(module) is nn.Linear
            and f"{name}.weight" in model.parameters
            and module.weight.numel() >= FEWEST_ENTRIES
        )
        if not large:
            return cls(model, ())
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape, generator=generator).to(model.like)
        y = torch.rand(model.head.classes, generator=generator).to(model.like)
        try:
            whole, found = model.gradient(x, y), cls(model, large).gradient(x, y)
        except Exception:  # a layer that sees several rows, or none
            return cls(model, ())
        weights = {name: f"{name}.weight" for name in large}
        return cls(model, tuple(n for n, w in weights.items() if _same(found[w], whole[w])))

    @property
    def weights(self) -> frozenset[str]:
        """The names of the weights whose gradients are factored."""
        return frozenset(f"{name}.weight" for name in self.layers)

    def gradient(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return ``∂L/∂θ`` by name; δ is the derivative by what is added to a layer's output."""
        fixed = {n: p for n, p in self.model.parameters.items() if n in self.weights}
        moving = {n: p for n, p in self.model.parameters.items() if n not in fixed}
        added = {f"{n}.weight": x.new_zeros(len(fixed[f"{n}.weight"])) for n in self.layers}

        def loss(values: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            parameters = {**{n: values[n] for n in moving}, **fixed}
            with self._tapped(values) as seen:
                return self.model.loss(parameters, x, y), seen

        found, seen = self.model.differentiated(loss, {**moving, **added})
        return found | {name: torch.cat([found[name], own]) for name, own in seen.items()}

    @contextmanager
    def _tapped(self, added: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Have every layer add a vector to its output, and collect what each sees (I,)."""
        seen: dict[str, Tensor] = {}

        def tap(name: str, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            (row,) = inputs[0]
            if name in seen or row.ndim != 1:
                raise ValueError(f"{name} acts more than once")
            seen[name] = row
            return output + added[name]

        modules = {f"{name}.weight": self.model.model.get_submodule(name) for name in self.layers}
        with watched(modules, after=tap):
            yield seen


def _same(factors: Tensor, gradient: Tensor) -> bool:
    """Return whether δ and x in a row are the factors of a gradient."""
    off = torch.outer(factors[: len(gradient)], factors[len(gradient) :]) - gradient
    return bool(off.norm() <= TOLERANCE * gradient.norm())


def factored(gradients: Sequence[Tensor]) -> Tensor | None:
    """Return rows σ, u and v (1 + C + I,) of gradients (C, I); None if one is no outer product."""
    rows = []
    for G in gradients:
        tiny = torch.finfo(torch.double).tiny
        largest = G[G.abs().amax(1).argmax()].double()
        v = largest / largest.norm().clamp_min(tiny)
        u = times_vector(G, v)
        v = vector_times(u, G) / u.square().sum().clamp_min(tiny)
        v = v / v.norm().clamp_min(tiny)
        u = times_vector(G, v)
        sigma = u.norm()
        if _residual(G, u, v) > ROUNDINGS * torch.finfo(G.dtype).eps * sigma:
            return None
        rows.append(torch.cat([sigma[None], u / sigma.clamp_min(tiny), v]))
    return torch.stack(rows)


def _residual(G: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the length of ``G − u vᵀ``."""
    squares, row = [], 0
    for block in float64_blocks(G):
        own = u[row : row + len(block)]
        squares.append(torch.addmm(block, own[:, None], v[None], alpha=-1).square().sum())
        row += len(block)
    return torch.stack(squares).sum().sqrt()


def parts(ours: Tensor, theirs: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return vectors with the same distance and angle as two outer products.

    ``ours`` is δ, of C ``classes``, and x (C + I,); ``theirs`` is σ, u and v (1 + C + I,).
    """
    delta, x = ours[:classes], ours[classes:]
    sigma, u, v = theirs[:1], theirs[1 : classes + 1], theirs[classes + 1 :]
    along_u, along_v = (delta * u).sum(), (x * v).sum()
    delta_rest, x_rest = delta - along_u * u, x - along_v * v
    square = delta_rest.square().sum() * x_rest.square().sum()
    far = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
    mine = [(along_u * along_v)[None], along_u * x_rest, along_v * delta_rest, far[None]]
    return torch.cat(mine), torch.cat([sigma, torch.zeros_like(ours), torch.zeros_like(sigma)])


@runtime_checkable
class Objective(Protocol):
    """A distance between what one input would send and what was sent."""

    @property
    def alpha(self) -> float:
        """Return the weight of the gradient of the head's weight."""

    @property
    def beta(self) -> float:
        """The weight of the feature; if it is zero, no feature is needed."""

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        """Return ``D`` over all gradients, which are already scaled by the root of their weight."""

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """Return ``D`` of two features (I,), or the mean over those of a batch (B, I)."""


@dataclass(frozen=True)
class _Weights:
    """The two weights of Eq. 8, which every objective here has."""

    alpha: float = 1.0  # of the gradient of the head's weight; zero leaves it out
    beta: float = 0.0  # of the feature; zero leaves it out

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < float("inf") and 0 <= self.beta < float("inf")):
            raise OptionError(
                f"expected weights that are finite and not negative, got alpha {self.alpha} and "
                f"beta {self.beta}"
            )


@dataclass(frozen=True)
class L2(_Weights):
    """The sum of squared differences (DLG)."""

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        apart = [(a - b).square().sum() for a, b in zip(ours, theirs, strict=True)]
        return torch.stack(apart).sum()

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return (ours - theirs).square().sum(-1).mean()


@dataclass(frozen=True)
class Cosine(_Weights):
    """One minus the cosine of the angle between all gradients, taken as one vector."""

    floor: float = 1e-30  # the least squared norm, so that a gradient of zero has a finite loss

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        product = torch.stack([(a * b).sum() for a, b in zip(ours, theirs, strict=True)]).sum()
        sizes = [torch.stack([g.square().sum() for g in each]).sum() for each in (ours, theirs)]
        both = sizes[0].clamp_min(self.floor) * sizes[1].clamp_min(self.floor)
        return 1 - product * both.rsqrt()

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        product = (ours * theirs).sum(-1)
        sizes = [g.square().sum(-1).clamp_min(self.floor) for g in (ours, theirs)]
        return (1 - product * (sizes[0] * sizes[1]).rsqrt()).mean()


class Prior(Protocol):
    """A penalty of one input, which is smaller where the input is likelier."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the penalty, a scalar, of one input such as (C, H, W)."""


@dataclass(frozen=True)
class TotalVariation:
    """The mean absolute difference of neighbours along each axis of an image or a signal.

    ``weight · Σ_axes mean |x_{i+1} − x_i|`` over the last two axes that are longer than one.
    """

    weight: float = 1e-2  # the paper has 1e-2 on untrained networks, 1e-3 on trained ones

    def __call__(self, x: Tensor) -> Tensor:
        axes = [axis for axis in (-1, -2) if x.ndim >= -axis and x.shape[axis] > 1]
        return self.weight * sum((x.diff(dim=a).abs().mean() for a in axes), x.new_zeros(()))


Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Targets:
    """What P clients sent, and the labels that are assumed."""

    # One tensor (P, …) for each of the problems' names; outer products are σ, u, v (P, 1 + C + I).
    gradients: tuple[Tensor, ...]
    # (P, I), or (P, 1) of zeros if the objective has no use for it; (P, B, I) for batches, with NaN
    # for samples whose feature is not known.
    feature: Tensor
    label: Tensor  # the soft labels (P, C), or (P, B, C); rows of free labels have no effect
    free: Tensor  # whether each label is optimised with its input, (P,) or (P, B)

    def select(self, rows: Tensor) -> Targets:
        gradients = tuple(g[rows] for g in self.gradients)
        return Targets(gradients, self.feature[rows], self.label[rows], self.free[rows])


@dataclass(frozen=True, eq=False)
class MatchingProblems:
    """P independent problems over rows: the entries of inputs, then the logits of their labels."""

    model: DifferentiableModel  # the function from input and label to gradient
    names: tuple[str, ...]  # the parameters whose gradients are matched
    objective: Objective  # the distance of gradients and features (Eq. 8)
    priors: Sequence[Prior]  # penalties of the input, added to the distance
    input_shape: tuple[int, ...]  # the shape of one input, or that of a batch (B, …)
    targets: Targets  # what was sent
    compiled: bool = False  # whether evaluations are compiled: faster, and rounded differently
    outer: OuterProducts | None = None  # the layers whose gradients are compared as outer products

    @property
    def _factored(self) -> frozenset[str]:
        """The parameters whose gradients are compared as outer products."""
        return frozenset() if self.outer is None else self.outer.weights

    def select(self, rows: Tensor) -> MatchingProblems:
        return replace(self, targets=self.targets.select(rows))

    def pack(self, inputs: Tensor, logits: Tensor) -> Tensor:
        """Return the unknowns (P, n) of inputs (P, …) and logits (P, C) or (P, B, C)."""
        return torch.cat([inputs.flatten(1), logits.flatten(1)], 1)

    def inputs(self, unknowns: Tensor) -> Tensor:
        flat = unknowns[:, : -self.targets.label[0].numel()]
        return flat.reshape(len(unknowns), *self.input_shape)

    def labels(self, unknowns: Tensor) -> Tensor:
        """Return the labels (P, C), or (P, B, C): those kept, or the softmax of free logits."""
        kept = self.targets.label
        logits = unknowns[:, -kept[0].numel() :].view_as(kept)
        return torch.where(self.targets.free[..., None], logits.softmax(-1), kept)

    def evaluator(self) -> Evaluate:
        """Return the function from unknowns (P, n) to losses (P,) and their gradients (P, n).

        Problems are evaluated one after the other if the model cannot be vectorised.
        """
        function = vmap(grad_and_value(self._loss), randomness="different")
        if self.compiled:
            function = compiled(function)
        t = self.targets
        vectorised = True

        def evaluate(unknowns: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal vectorised
            if vectorised:
                try:
                    slope, loss = function(unknowns, t.gradients, t.feature, t.label, t.free)
                    return loss, slope
                except OptionError:
                    raise
                except Exception:  # control flow by data, an operation without a batched form
                    vectorised = False
            return self._one_by_one(unknowns)

        return evaluate

    def misfits(self, unknowns: Tensor) -> list[float]:
        """Return ``‖g − g*‖ / ‖g*‖`` of each problem at unknowns (P, n), of gradients alone."""
        alone = replace(self, objective=L2(), priors=(), compiled=False)
        loss, _ = alone.evaluator()(unknowns)
        named = zip(self.names, self.targets.gradients, strict=True)
        sizes = [g[:, :1] if name in self._factored else g.flatten(1) for name, g in named]
        whole = torch.stack([size.square().sum(1) for size in sizes]).sum(0)
        return (loss / whole).sqrt().tolist()

    def _one_by_one(self, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same by plain autograd, without vectorisation or fused recurrent layers."""
        plain, t = replace(self.model, plain=True), self.targets
        outer = None if self.outer is None else replace(self.outer, model=plain)
        alone = replace(self, model=plain, outer=outer)
        losses, slopes = [], []
        with torch.enable_grad():
            for i, row in enumerate(unknowns):
                x = row.detach().requires_grad_()
                sent = [g[i] for g in t.gradients]
                loss = alone._loss(x, sent, t.feature[i], t.label[i], t.free[i])
                slopes.append(torch.autograd.grad(loss, x)[0])
                losses.append(loss.detach())
        return torch.stack(losses), torch.stack(slopes)

    def _loss(
        self, unknowns: Tensor, sent: Sequence[Tensor], feature: Tensor, label: Tensor, free: Tensor
    ) -> Tensor:
        """Return Eq. 8 and the priors for one problem."""
        x = unknowns[: -label.numel()].view(self.input_shape)
        logits = unknowns[-label.numel() :].view(label.shape)
        y = torch.where(free[..., None], logits.softmax(-1), label)
        if self.objective.beta:
            found, own = self.model.gradient_and_feature(x, y)
            known = feature.isfinite()  # samples of a batch that were not found have none
            own, feature = torch.where(known, own, 0.0), torch.where(known, feature, 0.0)
            extra = self.objective.beta * self.objective.features(own, feature)
        else:
            found, extra = (self.outer or self.model).gradient(x, y), x.new_zeros(())
        loss = self.objective.gradients(*self._weighted(found, sent)) + extra
        for prior in self.priors:
            loss = loss + prior(x)
        return loss

    def _weighted(
        self, found: dict[str, Tensor], sent: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return both sides, with the head's gradient scaled by √α, or left out if α is zero."""
        alpha, head = self.objective.alpha, self.model.head.weight_name
        named = zip(self.names, sent, strict=True)
        pairs = {
            name: parts(found[name], g, len(self.model.parameters[name]))
            if name in self._factored
            else (found[name], g)
            for name, g in named
        }
        if alpha != 1 and head in pairs:
            ours, theirs = pairs.pop(head)
            if alpha:
                pairs[head] = (ours * alpha**0.5, theirs * alpha**0.5)
        return [ours for ours, _ in pairs.values()], [theirs for _, theirs in pairs.values()]
