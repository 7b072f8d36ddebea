"""What is known between two layers during the walk back, and one step back per kind of layer.

Tensors belong to one sample, have no batch dimension and are in float64.

- A pointwise activation ``y = φ(a)``: the input is ``a = φ⁻¹(y)``, and ``∂L/∂a = φ'(a) ∂L/∂y``,
  where φ' follows from the output (§4.2).
- Reshapes, fixed factors and shifts, and average pooling need no gradient. The entries that a pool
  averaged cannot be told apart there. The averages become rows for the convolution below: with the
  pooling matrix P, the value is ``P⁺y``, δ is ``Pᵀδ``, and the precision Λ of the averages becomes
  ``PᵀΛP``, which is of lower rank than the number of entries.
- A fully connected layer is inverted by ``G = ∂L/∂W = δ xᵀ`` (§4.2, Eq. 6 and 7). The paper divides
  one row of G by one entry of δ. Here many rows are averaged: ``x = Gᵀδ/‖δ‖²``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import ModelError, ShareError
from softleak.core.share import GradientShare
from softleak.inversion.results import LayerReport
from softleak.numerics.least_squares import TINY


@dataclass(frozen=True, eq=False)
class LayerState:
    """All that the walk knows between two layers: the lower one's output z, and ``δ = ∂L/∂z``."""

    value: Tensor  # the estimate of z, in its shape; n is its number of entries
    error: Tensor  # the standard errors of z, infinite where an entry is not known by itself
    delta: Tensor  # the derivative δ, in the shape of z
    # The standard error that each entry of δ has by itself. It counts neither what follows from
    # the error of z nor ``scale_error``.
    delta_error: Tensor
    curvature: Tensor  # how fast each entry of δ moves with the same entry of z: ``∂δ_i/∂z_i``
    scale_error: float = 0.0  # the relative error that all entries of δ have in common
    # The inverse covariance (n, n) of z if its errors are correlated, and None if they are
    # independent.
    precision: Tensor | None = None
    # How many independent measurements the precision stands for, if these are fewer than the
    # entries (averages of several entries). None stands for n.
    measurements: int | None = None
    # The factor (1 or more) by which ``error`` was made smaller because the equations agreed
    # better than expected.
    error_reduction: float = 1.0
    # Return, for a better estimate of z, this state with the nearest activation above linearised
    # around it, or None if the present tangent describes that point too. Without it the tangent
    # may not be moved any more, or there is none.
    moved: Callable[[Tensor], LayerState | None] | None = None

    @classmethod
    def uncoupled(
        cls, value: Tensor, error: Tensor, delta: Tensor, delta_error: Tensor,
        scale_error: float = 0.0,
    ) -> LayerState:  # fmt: skip
        """Return a state whose ``delta`` does not move with the measured value."""
        return cls(value, error, delta, delta_error, torch.zeros_like(value), scale_error)

    def reshape(self, shape: tuple[int, ...]) -> LayerState:
        """Return the same entries, in the same order, in another shape."""
        own = ("value", "error", "delta", "delta_error", "curvature")
        return replace(self, **{name: getattr(self, name).reshape(shape) for name in own})

    def with_independent_errors(self) -> LayerState:
        """Return this state with all errors taken as independent, those of δ included.

        The precision matrix is dropped unless it stands for averages, which no list of separate
        errors can express. The part of δ's error that follows from z becomes its own.
        """
        return replace(
            self,
            delta_error=self.whole_delta_error(),
            curvature=torch.zeros_like(self.curvature),
            precision=None if self.measurements is None else self.precision,
        )

    def whole_delta_error(self) -> Tensor:
        """Return the standard error of each entry of δ, what follows from z's error included."""
        curved = self.curvature != 0  # an unknown z says nothing where δ does not follow it
        followed = torch.where(curved, self.curvature * self.error, 0.0)
        return self.delta_error.hypot(followed)


def combined(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of two measurements of one quantity, weighted by 1/error², and its error."""
    tiny = torch.finfo(torch.double).tiny
    w_a, w_b = (error.square().clamp_min(tiny).reciprocal() for error in (a_error, b_error))
    return (a * w_a + b * w_b) / (w_a + w_b), (w_a + w_b).rsqrt()


REMEDY = "use softleak.reconstruct (gradient matching) instead"


class Step(Protocol):
    """A layer that can be walked back through."""

    @property
    def name(self) -> str:
        """Return the layer's name in the model."""
        ...

    def back(self, out: LayerState, share: GradientShare) -> tuple[LayerState, LayerReport | None]:
        """Return what is known at the layer's input, by what is known at its output.

        If a system had to be solved for the input, how well it was determined is reported.
        """
        ...


def gradient(share: GradientShare, name: str, like: Tensor) -> Tensor:
    """Return a parameter's gradient as it was sent, on the device of the parameter ``like``.

    Raises:
        ShareError: If the share lacks the gradient, or its shape is another.
    """
    if name not in share:
        raise ShareError(
            f"the share lacks {name!r}, without which the input of that layer is not determined; "
            f"{REMEDY}"
        )
    if share[name].shape != like.shape:
        raise ShareError(
            f"the gradient {name!r} should be {tuple(like.shape)} as the model's parameter, got "
            f"{tuple(share[name].shape)}; check that the share was computed on this model"
        )
    return share[name].to(like.device)


Back = tuple[LayerState, LayerReport | None]  # what a step returns

SOFTPLUS_THRESHOLD = 20.0  # PyTorch's default: a softplus is straight above it, up to rounding
LARGEST_EXPONENT = 500.0  # exp of it is still far from float64's overflow
RANGE_MARGIN = 1e-15  # how near to an end of its range, of size one, float64 can tell an output
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
POSITIVE_ERRORS = 4.0  # standard errors above zero from which on an output of a ReLU was not cut
LONGEST_STEP = 1.0  # how far along the tangent a measured output may move the input


@dataclass(frozen=True)
class InvertibleActivation:
    """An activation φ and its inverse, pointwise."""

    forward: Callable[[Tensor], Tensor]  # ``φ(a)``
    # ``φ⁻¹(y)``, for outputs strictly between ``low`` and ``high``.
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]  # ``φ'(a)`` as a function of the output y
    # ``φ''(a)`` as a function of the output y.
    curvature: Callable[[Tensor], Tensor] = torch.zeros_like
    low: float = -torch.inf  # the lower end of φ's range
    high: float = torch.inf  # the upper end of φ's range
    cuts: bool = False  # whether φ maps every negative input to zero, as a ReLU does


def _leaky(slope: float) -> InvertibleActivation:
    """Return ``a`` above zero and ``slope · a`` below."""
    return InvertibleActivation(
        lambda a: F.leaky_relu(a, slope),
        lambda y: torch.where(y > 0, y, y / slope),
        lambda y: torch.where(y > 0, torch.ones_like(y), slope),
    )


def _exponential(
    forward: Callable[[Tensor], Tensor], depth: float, width: float = 1.0, straight: float = 1.0
) -> InvertibleActivation:
    """Return ``straight · a`` above zero and ``depth · (exp(a/width) − 1)`` below."""
    return InvertibleActivation(
        forward,
        lambda y: torch.where(
            y > 0, y / straight, width * torch.log1p((y / depth).clamp_min(RANGE_MARGIN - 1))
        ),
        lambda y: torch.where(y > 0, straight, (y + depth) / width),
        lambda y: torch.where(y > 0, 0.0, (y + depth) / width**2),
        low=-depth,
    )


def _softplus(beta: float) -> InvertibleActivation:
    """Return ``log(1 + exp(beta · a))/beta``, whose slope is ``1 − exp(−beta · y)``."""
    return InvertibleActivation(
        lambda a: F.softplus(a, beta),
        lambda y: torch.log(torch.expm1((beta * y).clamp(RANGE_MARGIN, LARGEST_EXPONENT))) / beta,
        lambda y: -torch.expm1(-beta * y),
        lambda y: -beta * torch.expm1(-beta * y) * torch.exp(-beta * y),
        low=0.0,
    )


RELU = InvertibleActivation(torch.relu, lambda y: y, lambda y: (y > 0).to(y), cuts=True)
SIGMOID = InvertibleActivation(
    torch.sigmoid, torch.logit, lambda y: y * (1 - y), lambda y: y * (1 - y) * (1 - 2 * y),
    low=0.0, high=1.0,
)  # fmt: skip
TANH = InvertibleActivation(
    torch.tanh, torch.atanh, lambda y: 1 - y * y, lambda y: -2 * y * (1 - y * y),
    low=-1.0, high=1.0,
)  # fmt: skip
SOFTSIGN = InvertibleActivation(
    F.softsign, lambda y: y / (1 - y.abs()), lambda y: (1 - y.abs()).square(),
    lambda y: -2 * y.sign() * (1 - y.abs()) ** 3, low=-1.0, high=1.0,
)  # fmt: skip
LOG_SIGMOID = InvertibleActivation(
    F.logsigmoid, lambda y: y - torch.log(-torch.expm1(y)), lambda y: -torch.expm1(y),
    lambda y: y.exp() * torch.expm1(y), high=0.0,
)  # fmt: skip
SELU = _exponential(F.selu, SELU_SCALE * SELU_ALPHA, straight=SELU_SCALE)
FIXED: Mapping[type[nn.Module], InvertibleActivation] = {
    nn.ReLU: RELU, nn.Sigmoid: SIGMOID, nn.Tanh: TANH, nn.SELU: SELU, nn.Softsign: SOFTSIGN,
    nn.LogSigmoid: LOG_SIGMOID,
}  # fmt: skip


def inverse_of(module: nn.Module) -> InvertibleActivation | None:
    """Return how to invert an activation; None if its slope does not follow from its output.

    Such are GELU, SiLU and PReLU, and every module that is no activation.
    """
    match module:
        case nn.LeakyReLU() if module.negative_slope > 0:
            return _leaky(module.negative_slope)
        case nn.ELU() if module.alpha > 0:
            return _exponential(partial(F.elu, alpha=module.alpha), module.alpha)
        case nn.CELU() if module.alpha > 0:
            return _exponential(partial(F.celu, alpha=module.alpha), module.alpha, module.alpha)
        case nn.Softplus() if module.threshold >= SOFTPLUS_THRESHOLD:
            return _softplus(float(module.beta))
        case _:
            return next((phi for kind, phi in FIXED.items() if isinstance(module, kind)), None)


@dataclass(frozen=True)
class ActivationStep:
    """An activation layer of a chain."""

    name: str
    phi: InvertibleActivation

    def back(self, out: LayerState, share: GradientShare) -> Back:
        return self.around(out, self._first_point(out)), None

    def around(self, out: LayerState, point: Tensor) -> LayerState:
        """Return the state at the input, to first order around the input ``point``.

        With ``y = φ(point)`` the input is ``point + (value − y)/φ'``, its error ``error/φ'``, and
        ``∂δ/∂a = φ'' ∂L/∂y + φ'² ∂²L/∂y²``.
        """
        hidden = self._hidden(out)
        y = self.phi.forward(point)
        slope = self.phi.slope(y)
        steep = slope.clamp_min(TINY)
        curvature = self.phi.curvature(y) * out.delta + slope.square() * out.curvature
        step = torch.where(hidden, 0.0, (out.value - y) / steep).clamp(-LONGEST_STEP, LONGEST_STEP)

        def moved(better: Tensor) -> LayerState | None:
            return None if self._is_straight(out, point, better) else self.around(out, better)

        return LayerState(
            point + step,
            torch.where(hidden | (slope <= 0), torch.inf, out.error / steep),
            out.delta * slope + curvature * step,
            (slope * out.delta_error).hypot(self._kink_error(y, out, hidden)),
            curvature,
            out.scale_error,
            self._precision(out, slope),
            moved=moved,
        )

    def _is_straight(self, out: LayerState, point: Tensor, other: Tensor) -> bool:
        """Tell whether the tangent at ``point`` meets ``φ(other)`` to within the output's error."""
        y = self.phi.forward(point)
        straight = y + self.phi.slope(y) * (other - point)
        missed = (self.phi.forward(other) - straight).abs() > out.error
        return not bool((missed & ~self._hidden(out)).any())

    def _hidden(self, out: LayerState) -> Tensor:
        """Return which outputs a ReLU has cut off, or probably has: nothing tells their inputs."""
        limit = POSITIVE_ERRORS * out.error_reduction * out.error
        return (out.value <= limit) & self.phi.cuts

    def _first_point(self, out: LayerState) -> Tensor:
        """Return ``φ⁻¹(y)``, an output at an end of φ's range taken to be one error inside."""
        hidden = self._hidden(out)
        margin = out.error.clamp(RANGE_MARGIN, (self.phi.high - self.phi.low) / 4)
        y = out.value.maximum(self.phi.low + margin).minimum(self.phi.high - margin)
        return torch.where(hidden, 0.0, self.phi.inverse(torch.where(hidden, 0.0, y)))

    def _kink_error(self, y: Tensor, out: LayerState, hidden: Tensor) -> Tensor:
        """Return the error of δ where an error of ``y`` may cross a kink of φ.

        It is half the jump of φ' between ``y ± error``, less what the curvature explains.
        """
        jump = (self.phi.slope(y + out.error) - self.phi.slope(y - out.error)) / 2
        smooth = self.phi.curvature(y) / self.phi.slope(y).clamp_min(TINY) * out.error
        return torch.where(hidden, 0.0, (jump - smooth) * out.delta).abs()

    def _precision(self, out: LayerState, slope: Tensor) -> Tensor | None:
        """Return the precision of the input, ``diag(φ') P diag(φ')``, unless φ cuts entries off."""
        if out.precision is None or self.phi.cuts:
            return None
        d = slope.flatten()
        return (out.precision * d).mul_(d[:, None])


RANK_TOLERANCE = 1e-9  # of the largest singular value: what is smaller counts as zero


class Lossless:
    """A step with an exact inverse: where the activation above is linearised can still move."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for one input."""
        raise NotImplementedError

    def carried(self, out: LayerState) -> LayerState:
        """Return the state at the layer's input, exactly."""
        raise NotImplementedError

    def back(self, out: LayerState, share: GradientShare) -> Back:
        return self._below(out), None

    def _below(self, out: LayerState) -> LayerState:
        def moved(better: Tensor) -> LayerState | None:
            above = out.moved(self.forward(better)) if out.moved else None
            return None if above is None else self._below(above)

        return replace(self.carried(out), moved=moved)


@dataclass(frozen=True)
class Reshape(Lossless):
    """A step that changes shapes only: flatten, view, reshape, and dropout in eval mode."""

    name: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(self.output_shape)

    def carried(self, out: LayerState) -> LayerState:
        return out.reshape(self.input_shape)


@dataclass(frozen=True, eq=False)
class Affine(Lossless):
    """The step ``y = scale · x + shift``, entry by entry.

    ``scale`` and ``shift`` have the shape of the input, or one entry per channel and ones for the
    other dimensions.
    """

    name: str
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(
        cls, name: str, layer: nn.BatchNorm2d | nn.BatchNorm1d, input_shape: tuple[int, ...]
    ) -> Affine:
        """Return a BatchNorm with running statistics as a step, for an input (C, ...).

        Its scale is ``γ/√(variance + ε)`` and its shift ``β − scale · mean``, per channel.
        """
        mean, variance = layer.running_mean, layer.running_var
        if mean is None or variance is None:
            raise ModelError(
                f"expected {name} ({type(layer).__name__}) to have running statistics, got none: "
                "it then normalises by the batch; build it with track_running_stats=True"
            )
        gamma = torch.ones_like(mean) if layer.weight is None else layer.weight.detach()
        beta = torch.zeros_like(mean) if layer.bias is None else layer.bias.detach()
        scale = gamma.double() / (variance.double() + layer.eps).sqrt()
        shift = beta.double() - scale * mean.double()
        shape = (-1, *[1] * (len(input_shape) - 1))
        return cls(name, scale.view(shape), shift.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift

    def carried(self, out: LayerState) -> LayerState:
        """Return ``(value − shift)/scale``, ``δ · scale`` and their errors.

        An entry that was multiplied by zero is not known.
        """
        scale, lost = self.scale, self.scale == 0
        each = scale.expand_as(out.value).flatten()
        return replace(
            out,
            value=torch.where(lost, 0.0, (out.value - self.shift) / scale),
            error=torch.where(lost, torch.inf, out.error / scale.abs()),
            delta=out.delta * scale,
            delta_error=out.delta_error * scale.abs(),
            curvature=out.curvature * scale.square(),
            precision=None if out.precision is None else out.precision * each[:, None] * each,
        )


@dataclass(frozen=True, eq=False)
class Pool:
    """A step that pools planes (H, W) by one matrix (m, H·W), channel by channel.

    ``injective`` says whether the averages determine every pixel.
    """

    name: str
    input_shape: tuple[int, ...]
    matrix: Tensor
    injective: bool

    @classmethod
    def of(cls, name: str, layer: nn.Module, input_shape: tuple[int, ...]) -> Pool:
        """Return a linear pooling layer as a step, its matrix built by pooling every single pixel.

        ``input_shape`` is (C, H, W).
        """
        height, width = input_shape[-2:]
        pixels = torch.eye(height * width, dtype=torch.double).view(-1, 1, height, width)
        matrix = layer(pixels).flatten(1).T.contiguous()
        rank = int(torch.linalg.matrix_rank(matrix, rtol=RANK_TOLERANCE))
        return cls(name, input_shape, matrix, rank == height * width)

    def back(self, out: LayerState, share: GradientShare) -> Back:
        matrix, shape = self.matrix.to(out.value.device), self.input_shape
        value = (out.value.flatten(1) @ torch.linalg.pinv(matrix).T).view(shape)
        precision = self._precision(out, matrix)
        alone = precision.diagonal().rsqrt()  # a lower bound, exact where no averages overlap
        error = alone if self.injective else torch.full_like(alone, torch.inf)
        delta_error = out.whole_delta_error().flatten(1)
        below = LayerState.uncoupled(
            value,
            error.view(shape),
            (out.delta.flatten(1) @ matrix).view(shape),
            (delta_error.square() @ matrix.square()).sqrt().view(shape),
            out.scale_error,
        )
        return replace(below, precision=precision, measurements=out.value.numel()), None

    def _precision(self, out: LayerState, matrix: Tensor) -> Tensor:
        """Return ``PᵀΛP`` (n, n) over all channels, Λ being the precision of the averages."""
        channels = torch.eye(self.input_shape[0], dtype=torch.double, device=matrix.device)
        blocks = torch.kron(channels, matrix)
        precision = out.precision
        if precision is None:
            error = out.error.flatten().clamp_min(TINY)
            precision = torch.where(error.isfinite(), error.square().reciprocal(), 0.0).diag()
        return blocks.T @ precision @ blocks


# The search for the scale that puts a vector on the grid of a floating-point type.
FEWEST_ENTRIES = 32  # fewer could all lie on the grid by chance
MOST_ENTRIES = 512  # more take longer and are hardly surer
ENTRY_ERROR = 1 / 8  # of the spacing: the largest error with which an entry still counts
TRIALS_PER_SPACING = 6  # scales that are tried while the largest entries move by one spacing
WINDOW = 6.0  # standard errors of the scale that are searched on either side
MOST_TRIALS = 1 << 14  # a scale that needs more is too uncertain for the grid to tell it
LEAST_SCORE = 0.6  # the mean of ``cos 2π(x/spacing)``: one on the grid, zero by chance
LEAD = 6.0  # standard errors by which the best score must exceed that of any other scale
FINEST_SPACING = 1e-12  # the finest relative spacing that computations in float64 resolve


class Scale(NamedTuple):
    """The factor by which to multiply a vector, and the relative error that remains."""

    factor: float
    error: float


def scale_on_grid(x: Tensor, error: Tensor, scale_error: float, dtype: torch.dtype) -> Scale | None:
    """Return the factor near one that puts all of ``x`` on the grid of a floating-point type.

    The numbers (n,) lie on the grid but for one common factor, known to ``scale_error``, and the
    ``error`` (n,) that each has by itself. The answer is None if no factor stands out.
    """
    spacing = torch.finfo(dtype).eps / 2  # relative, for the largest numbers of an octave
    margin = 2 * TRIALS_PER_SPACING
    if spacing < FINEST_SPACING or scale_error >= 1:
        return None
    steps = math.ceil(TRIALS_PER_SPACING * WINDOW * scale_error / spacing) + margin
    if 2 * steps > MOST_TRIALS:
        return None
    clear = (error <= ENTRY_ERROR * spacing * x.abs()) & (x != 0)
    points = _grid_units(x[clear], spacing)
    if len(points) < FEWEST_ENTRIES:
        return None
    tried = torch.arange(-steps, steps + 1, dtype=x.dtype, device=x.device)
    tried = tried * spacing / TRIALS_PER_SPACING
    scores = torch.cos(2 * math.pi * (points + points * tried[:, None]))
    best = int(scores.mean(1).argmax())
    if float(scores[best].mean()) < LEAST_SCORE or not _stands_out(scores, best):
        return None
    moved = points * (1 + tried[best])
    off = moved.round() - moved
    more = (moved @ off) / moved.square().sum()
    left = (off - more * moved).norm() / moved.norm() / len(moved) ** 0.5
    return Scale(float((1 + tried[best]) * (1 + more)), float(left))


def _grid_units(x: Tensor, spacing: float) -> Tensor:
    """Return a few hundred different entries, each in units of the spacing around it."""
    octave = torch.frexp(x).exponent - 1
    points = (x / torch.ldexp(torch.full_like(x, 2 * spacing), octave)).sort().values
    points = points[points.diff(prepend=points[:1] - 1) > 0.5]
    return points[:: len(points) // MOST_ENTRIES + 1]


def _stands_out(scores: Tensor, best: int) -> bool:
    """Tell whether one scale leads all others outside of its own peak.

    ``scores`` (trials, entries) is the cosine of every entry at every scale; the lead is measured
    in standard errors of the mean over entries.
    """
    rank = torch.arange(len(scores), device=scores.device)
    ahead = (scores[best] - scores)[(rank - best).abs() > TRIALS_PER_SPACING / 2]
    errors = ahead.std(1) / scores.shape[1] ** 0.5
    return bool((ahead.mean(1) > LEAD * errors).all())


@dataclass(frozen=True, eq=False)
class Linear:
    """A fully connected layer of a chain."""

    name: str  # the layer's name in the model
    weight: Tensor  # its weight W (outputs, inputs), in the model's precision
    has_bias: bool  # whether it has a bias, whose gradient is δ itself
    # How many rows of G are used, those of the largest |δ|. More would take time and hardly add
    # precision.
    rows: int = 128

    def back(self, out: LayerState, share: GradientShare) -> Back:
        name = f"{self.name}.weight"
        weight = gradient(share, name, self.weight)
        eps, noise = share.resolution(name, self.weight.dtype), share.noise(name)
        delta, delta_error, scale_error = self._delta_out(out, share)
        rows = delta.abs().topk(min(self.rows, len(delta))).indices
        d, G = delta[rows], weight[rows].double()
        size = d.square().sum()
        if not size > TINY:
            return self._unknown(out.scale_error)
        x = (d @ G) / size
        # The rows give δ as well, but for its scale. The difference tells the error of δ, and what
        # δ xᵀ leaves of the rows tells how large their own errors are.
        d_rows = (G @ x) / x.square().sum().clamp_min(TINY)
        off = math.hypot(float((d * (d - d_rows)).norm() / size), scale_error)
        expected = (eps * G.norm()).hypot(noise * G.new_tensor(G.numel()).sqrt()).clamp_min(TINY)
        residual = float((G - d_rows[:, None] * x).norm() / expected)
        rounding = eps * (d.square() @ G.square()).sqrt() / size
        rounding = residual * rounding.hypot(noise / size.sqrt())
        scale = scale_on_grid(x, rounding, off, weight.dtype)
        if scale is not None:
            x, delta = x * scale.factor, delta / scale.factor
            off = scale_error = scale.error
        report = LayerReport(self.name, len(delta) * len(x), len(x), 1.0, residual, True)
        error = rounding.hypot(off * x.abs()) + TINY
        below = self._delta_in(delta, delta_error, eps)
        return LayerState.uncoupled(x, error, *below, scale_error), report

    def _delta_out(self, out: LayerState, share: GradientShare) -> tuple[Tensor, Tensor, float]:
        """Return δ (outputs,), its errors and the relative error of its scale.

        The walk's δ is averaged with the gradient of the bias, which is δ as well.
        """
        delta, error, walked = out.delta, out.whole_delta_error(), out.scale_error
        name = f"{self.name}.bias"
        if not self.has_bias or name not in share:
            return delta, error, walked
        bias = gradient(share, name, delta).double()
        own = share.resolution(name, self.weight.dtype) * bias.abs() + TINY + share.noise(name)
        scale_error = float((own * bias).norm() / bias.square().sum().clamp_min(TINY))
        both = combined(delta, error.hypot(walked * delta), bias, own)
        return *both, min(walked, scale_error)

    def _unknown(self, scale_error: float) -> Back:
        """Return an unknown input: where δ is zero, no row says anything."""
        x = torch.zeros_like(self.weight[0], dtype=torch.double)
        report = LayerReport(self.name, 0, len(x), math.inf, 0.0, False)
        return LayerState.uncoupled(x, x + math.inf, x, x, scale_error), report

    def _delta_in(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return ``∂L/∂x = Wᵀδ`` (inputs,) and its error, from that of δ and from rounding."""
        before = (delta.to(self.weight.dtype) @ self.weight).double()
        relative = error.norm() / delta.norm().clamp_min(TINY)
        spread = before.square().mean().sqrt()
        return before, relative * spread + 2 * eps * (before.abs() + spread)
