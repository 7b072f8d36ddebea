"""The head of a model, found and verified: the model does with it what attacks assume.

The assumption is ``logits = W x + b`` up to a constant per sample, and that the gradients of ``W``
and ``b`` are ``δ xᵀ`` and ``δ`` with ``δ = softmax(logits) − y``. A temperature, an average of two
heads, a subclass of ``nn.Linear`` or a hook may break it without a trace in the model's structure,
so the model is run on random inputs and both are compared with what really comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import HeadNotFound, ModelError
from softleak.core.forward import (
    CLASSES,
    TOKENS,
    accepted_shapes,
    forward_one,
    gradients_of,
    random_input,
    row_of_logits,
    seeded,
    watched,
)
from softleak.core.input_spec import Inputs, InputSpec, Layout
from softleak.core.share import GradientShare
from softleak.core.vocabulary import Precision

POWER_STEPS, POWER_SLACK = 8, 1.2  # of the iteration, and a factor for what its steps lack
SHORTEST = 1e-300  # keeps a quotient finite
CACHED_BLOCK = 1 << 18  # entries converted to float64 at a time, so that they stay in the cache
KEPT_WEIGHTS = 1 << 22  # entries of a head that is kept in float64 as well, in 32 MiB at most
RUNS, SEED = 3, 0  # random inputs that the head is verified on, and their seed
ROUNDINGS = 64.0  # of the largest term: what the order of a sum may change
TF32 = 2.0**-10  # the resolution of matrix products where CUDA may shorten their factors


def float64_blocks(matrix: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix (C, I) in float64, in blocks that stay in the cache.

    All blocks share one buffer, so each is valid until the next is asked for. Fresh memory for
    every block would take several times as long as the product that it is needed for.
    """
    rows = max(CACHED_BLOCK // max(matrix.shape[1], 1), 1)
    if matrix.dtype is torch.double or len(matrix) <= rows:
        yield matrix.double()
        return
    buffer = torch.empty(rows, matrix.shape[1], dtype=torch.double, device=matrix.device)
    for block in torch.split(matrix, rows):
        yield buffer[: len(block)].copy_(block)


def times_vector(matrix: Tensor, x: Tensor) -> Tensor:
    """Return ``M x`` (C,) in float64, of a matrix (C, I): it runs at the speed of memory."""
    products = [torch.mv(block, x) for block in float64_blocks(matrix)]
    return torch.cat(products) if len(products) > 1 else products[0]


def vector_times(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``xᵀ M`` (I,) in float64, of a matrix (C, I)."""
    found, row = x.new_zeros(matrix.shape[1]), 0
    for block in float64_blocks(matrix):
        found.addmv_(block.T, x[row : row + len(block)])
        row += len(block)
    return found


def product_and_sums(matrix: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``M x`` (C,) and the sums (I,) over the columns of ``M`` (C, I), in one pass."""
    ones, sums = torch.ones(len(matrix)).to(x), x.new_zeros(matrix.shape[1])
    products = []
    for block in float64_blocks(matrix):
        products.append(torch.mv(block, x))
        sums.addmv_(block.T, ones[: len(block)])
    return torch.cat(products), sums


def column_sums(matrix: Tensor) -> Tensor:
    """Return the sums (I,) over the columns of a matrix (C, I), in float64."""
    return vector_times(torch.ones(len(matrix)).to(matrix.device, torch.double), matrix)


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last linear layer: ``W`` (C, I), and ``b`` (C,), zero if there is none.

    ``normalised`` says that the model takes a log-softmax of its output. The cross-entropy takes
    another, and then even rounding errors of ``p − y`` add up to zero.
    """

    name: str
    W: Tensor
    b: Tensor
    has_bias: bool
    normalised: bool = False
    each_token: bool = False  # whether it answers at every token, as a language model's does

    @cached_property
    def largest_weight(self) -> float:
        return float(self.W.abs().max())

    @cached_property
    def largest_row(self) -> float:
        return float(self.W.norm(dim=1).max())

    @cached_property
    def _weights(self) -> Tensor:
        """Return ``W`` for products: in float64 unless that would take much memory."""
        return self.W.double() if self.W.numel() <= KEPT_WEIGHTS else self.W

    @cached_property
    def column_sums(self) -> Tensor:
        """Return the sums (I,) over the columns of ``W``, in float64."""
        return column_sums(self.W)

    @cached_property
    def norm(self) -> float:
        """Return the largest singular value of ``W``, from a few power steps, rounded up."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, self.W.shape[1], generator=generator, dtype=torch.double)
        x = x.to(self.W.device)
        for _ in range(POWER_STEPS):
            x = self.back(self.logits(x / x.norm().clamp_min(SHORTEST)))
        return POWER_SLACK * float(x.norm().sqrt())

    @property
    def weight_name(self) -> str:
        """Return the parameter whose gradient is ``G``."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str:
        """Return the parameter whose gradient is ``δ`` itself."""
        return f"{self.name}.bias" if self.name else "bias"

    @property
    def dtype(self) -> torch.dtype:
        return self.W.dtype

    @property
    def classes(self) -> int:
        return self.W.shape[0]

    def logits(self, x: Tensor) -> Tensor:
        """Return ``W x`` (N, C) in float64, of features (N, I), without the bias."""
        if len(x) == 1:
            return times_vector(self._weights, x[0])[None]
        return torch.cat([x @ block.T for block in float64_blocks(self._weights)], 1)

    def back(self, delta: Tensor) -> Tensor:
        """Return ``Wᵀ δ`` (N, I) in float64, of ``δ`` (N, C)."""
        if len(delta) == 1:
            return vector_times(delta[0], self._weights)[None]
        found, row = delta.new_zeros(len(delta), self.W.shape[1]), 0
        for block in float64_blocks(self._weights):
            found.addmm_(delta[:, row : row + len(block)], block)
            row += len(block)
        return found

    @classmethod
    def of(cls, model: nn.Module, name: str | None = None) -> Head:
        """Return the linear layer of this name, by default the last; the caller vouches for it."""
        linears = linear_layers(model)
        if name is not None and name not in linears:
            raise HeadNotFound(f"no nn.Linear named {name!r}; the model has {', '.join(linears)}")
        name = list(linears)[-1] if name is None else name
        W, bias = linears[name].weight.detach(), linears[name].bias
        if not W.is_meta and not W.isfinite().all():
            raise ModelError(f"the head {name!r} has weights that are NaN or infinite")
        b = torch.zeros(len(W), device=W.device) if bias is None else bias.detach()
        return cls(name, W, b.double(), bias is not None)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return every ``nn.Linear`` of a model by name; raises ``HeadNotFound`` if there is none."""
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    if not linears:
        raise HeadNotFound(
            f"expected a classifier whose logits come from an nn.Linear, but "
            f"{type(model).__name__} has no nn.Linear"
        )
    return linears


def find_head(model: nn.Module, name: str | None = None, shape: Layout | None = None) -> Head:
    """Return the linear layer whose output the logits are, checked on random inputs of this shape.

    By default that is the first usual shape that the model accepts. Raises ``HeadNotFound`` if no
    linear layer (or not the named one) does what the attacks assume, or none can be checked.
    """
    linears = linear_layers(model)
    if name is not None:
        linears = {name: linears[Head.of(model, name).name]}
    shape = shape or next(accepted_shapes(model), None)
    if shape is None:
        raise ModelError(
            "could not tell which input the model takes, so its head cannot be verified; pass "
            "input_shape, such as (3, 32, 32) (--input-shape 3,32,32 on the command line), or "
            "head=Head.of(model, name) if you vouch for it"
        )
    if (speaking := _speaking(model, linears, shape)) is not None:
        return replace(Head.of(model, speaking), each_token=True)
    runs = _runs(model, linears, shape)
    producers = [n for n in linears if all(_gives_logits(run, n) for run in runs)]
    if not producers:
        raise HeadNotFound(_why_none(linears, runs))
    head = Head.of(model, producers[-1])
    _check_layer(head.name, linears[head.name], runs)
    return replace(head, normalised=all(map(_sums_to_one, runs)))


def _speaking(model: nn.Module, linears: dict[str, nn.Linear], shape: Layout) -> str | None:
    """Return the layer whose output at every token the logits (1, L, V) are, if they are such."""
    if not isinstance(shape, InputSpec):
        return None
    made: dict[str, Tensor] = {}
    x = random_input(shape, 0, torch.Generator().manual_seed(SEED))
    with torch.no_grad(), watched(linears, after=lambda name, _, out: made.update({name: out})):
        logits, _ = forward_one(model, x, (CLASSES, TOKENS))
    alike = [n for n, out in made.items() if logits.ndim == TOKENS and torch.equal(out, logits)]
    return alike[-1] if alike else None


class _Run(NamedTuple):
    """One forward and backward pass: what entered and left each layer, and gradients."""

    logits: Tensor
    delta: Tensor
    calls: dict[str, list[tuple[Tensor, Tensor]]]
    gradients: dict[str, Tensor]


def _runs(model: nn.Module, linears: dict[str, nn.Linear], shape: Layout) -> list[_Run]:
    generator = torch.Generator().manual_seed(SEED)
    like = next(iter(linears.values())).weight
    # Dropout and noise in train mode draw from the global generator.
    with seeded(SEED, like), torch.enable_grad():
        inputs = [random_input(shape, index, generator) for index in range(RUNS)]
        return [_run(model, linears, x, index) for index, x in enumerate(inputs)]


def _run(model: nn.Module, linears: dict[str, nn.Linear], x: Inputs, index: int) -> _Run:
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in linears}

    def remember(name: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[name].append((inputs[0].detach(), output.detach()))

    def begin_anew(*_: object) -> None:
        for made in calls.values():
            made.clear()  # of a try with an input of another shape, which the model refused

    with watched({"": model}, before=begin_anew), watched(linears, after=remember):
        logits, _ = forward_one(model, x)
    for made in calls.values():
        made[:] = [row_of_logits(*call, logits.detach()) for call in made]
    delta = _some_residual(logits.detach()[0], index)
    wanted = {n: p for n, p in _parameters(linears).items() if p.requires_grad}
    found: Iterable[Tensor | None] = ()
    if wanted and logits.requires_grad:
        found = gradients_of((logits[0] * delta).sum(), list(wanted.values()))
    gradients = {n: g for n, g in zip(wanted, found, strict=False) if g is not None}
    return _Run(logits.detach(), delta, calls, gradients)


def _some_residual(logits: Tensor, index: int) -> Tensor:
    """Return a gradient (C,) at the logits; of several it sums to zero, as behind a log-softmax."""
    classes = len(logits)
    chosen = F.one_hot(torch.tensor(index % classes), classes).to(logits)
    return chosen - 1 / classes if classes > 1 else chosen


def _parameters(linears: dict[str, nn.Linear]) -> dict[str, Tensor]:
    """Return the registered parameters of layers: what is computed from others is none of them."""
    own = ((layer, linear._parameters) for layer, linear in linears.items())
    return {f"{n}.{k}": p for n, held in own for k, p in held.items() if p is not None}


def _gives_logits(run: _Run, name: str) -> bool:
    """Return whether the layer's last output is the logits, up to a constant."""
    if not run.calls[name]:
        return False
    _, output = run.calls[name][-1]
    if output.shape != run.logits.shape:
        return False
    difference = output - run.logits  # a log-softmax shifts the logits, which changes no gradient
    several = output.shape[-1] > 1
    spread = difference.amax() - difference.amin() if several else difference.abs().amax()
    return bool(spread <= 8 * torch.finfo(output.dtype).eps * (1 + output.abs().amax()))


def _sums_to_one(run: _Run) -> bool:
    """Return whether the model's outputs are logarithms of probabilities."""
    eps = torch.finfo(run.logits.dtype).eps
    off = run.logits.logsumexp(-1).abs()
    return bool((off <= ROUNDINGS * eps * (1 + run.logits.abs().amax())).all())


def _check_layer(name: str, linear: nn.Linear, runs: list[_Run]) -> None:
    """Raise unless the layer was called once a run, computed ``W x + b``, and got its gradients."""
    W = linear.weight.detach().double()
    b = 0.0 if linear.bias is None else linear.bias.detach().double()
    checked = False
    for run in runs:
        if len(run.calls[name]) > 1:
            raise HeadNotFound(
                f"the head {name!r} is applied {len(run.calls[name])} times per sample; its "
                "gradient is then not that of one feature, and softleak cannot read it"
            )
        x, output = (tensor[0].double() for tensor in run.calls[name][0])
        if not _close(output, W @ x + b, (W.abs() @ x.abs()) + abs(b), linear):
            raise HeadNotFound(
                f"the layer {name!r} does not compute W x + b with its own weights: it rescales, "
                "quantises or adds something, and every label read from it would be wrong"
            )
        delta = run.delta.double()
        predicted = {f"{name}.weight": torch.outer(delta, x), f"{name}.bias": delta}
        for key, gradient in run.gradients.items():
            if key in predicted:
                expected = predicted[key]
                checked |= bool(expected.any())
                if not _close(gradient, expected, expected.abs().amax(), linear):
                    raise HeadNotFound(
                        f"the gradient of {key!r} on random inputs is not what a linear head "
                        "gives: a hook rescales it, or the parameter is used "
                        "elsewhere as well; softleak cannot read it"
                    )
    if not checked and any(p.requires_grad for p in linear.parameters()):
        raise HeadNotFound(
            f"the head {name!r} has no gradient on random inputs, so it cannot be verified; pass "
            "head=Head.of(model, name) if you vouch for it"
        )


def _close(found: Tensor, expected: Tensor, size: Tensor, linear: nn.Linear) -> bool:
    eps = torch.finfo(linear.weight.dtype).eps
    if linear.weight.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        eps = max(eps, TF32)
    return bool(((found.double() - expected).abs() <= ROUNDINGS * eps * (size + 1e-30)).all())


def _why_none(linears: dict[str, nn.Linear], runs: list[_Run]) -> str:
    used = [name for name in linears if all(run.calls[name] for run in runs)]
    named = ", ".join(list(linears)[:6]) + (", …" if len(linears) > 6 else "")
    if not used:
        return f"none of the linear layers ({named}) is used for every input"
    return (
        f"the model's output is not that of a linear layer ({named}); softleak needs logits "
        "straight from an nn.Linear, without a temperature, a scale, a softmax or an average "
        "behind it"
    )


# Under autocast the last bits of every entry of the head's gradient are zero. TF32 leaves no trace.
ENOUGH = 32  # entries that are not zero: fewer could end in zeros by chance
LAST_BITS: tuple[tuple[Precision, int], ...] = (("bfloat16", 16), ("float16", 13))


def with_precision(share: GradientShare, head: Head) -> GradientShare:
    """Return the share with the half precision that its head's gradient shows, if it is not stated.

    Its numbers are then written in float32, and their last bits are zero.
    """
    gradient = share.get(head.weight_name)
    if share.precision is not None or gradient is None or gradient.dtype is not torch.float32:
        return share
    bits = gradient.contiguous().flatten().view(torch.int32)
    _, least = LAST_BITS[-1]
    # A few entries first: most shares end here.
    if _ends_in_bits(bits[:ENOUGH], least) or int((gradient != 0).sum()) < ENOUGH:
        return share
    shown = (name for name, count in LAST_BITS if not _ends_in_bits(bits, count))
    return replace(share, precision=next(shown, None))


def _ends_in_bits(bits: Tensor, count: int) -> bool:
    """Return whether some of the last ``count`` bits of any number are set."""
    return bool((bits & ((1 << count) - 1)).any())
