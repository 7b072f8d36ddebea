"""Try Gauss–Newton from several starts and state what the best of them is worth."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softleak.core.errors import ModelError, OptionError
from softleak.core.results import Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.certificate import Certifier
from softleak.matching.gauss_newton.descent import (
    DampedDescent,
    NormalSteps,
    Walk,
)
from softleak.matching.gauss_newton.equations import (
    BatchEquations,
    BatchFunction,
    BatchKnowledge,
)
from softleak.matching.gauss_newton.escape import FoldEscape
from softleak.matching.gauss_newton.kinks import GatedModel, MaskDescent
from softleak.matching.gauss_newton.metric import IMAGE_AXES, Metric
from softleak.matching.gauss_newton.products import BatchModel, NewtonModel
from softleak.matching.reconstruction import Certificate, Reconstruction, Stopping

# Operations of torch that are smooth wherever they are defined. Those that pick or move entries are
# among them: they are linear unless indices depend on the input, which other operations betray.
NAMES = """
    add sub rsub mul div neg reciprocal square pow sqrt rsqrt exp exp2 expm1 log log1p log2
    log10 sin cos tan tanh sinh cosh atan asinh sigmoid silu gelu mish softplus
    log_sigmoid_forward erf erfc addcmul addcdiv lerp mm bmm mv dot addmm addmv baddbmm addbmm
    linear matmul einsum convolution mkldnn_convolution mkldnn_linear native_batch_norm
    cudnn_batch_norm batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
    native_layer_norm native_group_norm _fused_rms_norm rms_norm _softmax _safe_softmax
    _log_softmax logsumexp _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_attention_math mean sum var var_mean std std_mean cumsum prod
    linalg_vector_norm avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_nearest1d
    upsample_linear1d _upsample_bilinear2d_aa _upsample_bicubic2d_aa view _unsafe_view reshape
    _reshape_alias permute transpose t expand unsqueeze squeeze select slice split
    split_with_sizes unbind cat stack clone detach alias as_strided roll flip rot90
    constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d unfold
    im2col col2im index index_select index_put gather scatter scatter_add index_add embedding
    pixel_shuffle pixel_unshuffle channel_shuffle tril triu diagonal repeat where masked_fill
    _to_copy copy lift_fresh native_dropout zeros_like ones_like empty_like full_like new_zeros
    new_ones new_empty new_full
"""
SMOOTH = frozenset(NAMES.split())


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remember the names of the operations that the input passes through."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        # What depends on the input, by its identity; held, so that nothing else has that identity.
        self.held: dict[int, Tensor] = {id(x): x}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (),  # noqa: ANN401 - of any kind
        kwargs: dict[str, object] | None = None,
    ) -> object:  # fmt: skip
        out = func(*args, **(kwargs or {}))
        if any(id(one) in self.held for one in tree_leaves((args, kwargs))):
            name = func.overloadpacket.__name__
            name = name if name in SMOOTH else name.rstrip("_")
            made = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
            whole = any(not one.is_floating_point() for one in made)
            self.names.add(f"{name} to whole numbers" if whole and name in SMOOTH else name)
            self.held.update({id(one): one for one in made})
        return out


DISTANCES = (0.03, 0.01, 0.003, 0.001)  # at which a gradient is probed, for inputs of size one
DIRECTIONS = 3  # along how many random directions it is probed
LEAST_ORDER = 1.75  # the order of shrinking from which on the gradient counts as smooth
ALIKE = 1e-9  # relative: how far gradients by gates may be from those of the network
PROBE_NOISE = 1e-12  # a second difference below this part of the gradient is rounding


def why_not_smooth(function: BatchFunction) -> str:
    """Return why a network is not smooth, or nothing if it is.

    ``‖g(x + hv) − 2 g(x) + g(x − hv)‖`` shrinks like ``h²`` where the gradient is smooth. Where
    units switch, it shrinks more slowly: their number grows like ``h``, and each switch is a jump.
    """
    x = function.model.like.new_zeros(function.shape)
    with torch.no_grad(), function.mode(), _Operations(x) as seen:
        function.model.model(x)
    if others := sorted(seen.names - SMOOTH):
        return f"the network is not known to be smooth: it uses {', '.join(others)}"
    generator = torch.Generator().manual_seed(0)
    least = min(_shrinking(function, generator) for _ in range(DIRECTIONS))
    if least < LEAST_ORDER:
        return (
            f"the gradient bends like a distance to the power {least:.1f} (2 is smooth): "
            "units of the network switch"
        )
    return ""


def _shrinking(function: BatchFunction, generator: torch.Generator) -> float:
    """Return the least order of shrinking between two distances, along one direction."""

    def drawn(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.double)

    labels = drawn(function.unknowns - function.pixels).view(function.shape[0], -1).softmax(1)
    z = function.pack(drawn(function.pixels), labels)
    v = torch.zeros_like(z)
    v[: function.pixels] = drawn(function.pixels)
    with torch.no_grad():
        here = function.rows(z)
        bends = [
            float((function.rows(z + h * v) - 2 * here + function.rows(z - h * v)).norm())
            for h in DISTANCES
        ]
    floor = PROBE_NOISE * float(here.norm())
    orders = (
        math.log(b / d) / math.log(h / k)
        for (h, b), (k, d) in itertools.pairwise(zip(DISTANCES, bends, strict=True))
        if b > floor and d > floor
    )
    return min(orders, default=math.inf)


# The values of each channel of a flat image that are tried, in units of the input.
LEVELS = (-2.0, -1.2, -0.5, 0.0, 0.5, 1.2, 2.0)
COLOURED = 3  # the largest number of channels whose levels are tried in every combination


def flat_images(equations: BatchEquations, start: Tensor, stopping: Stopping) -> Tensor:
    """Return images (B, …) of the flat colours that leave the least misfit.

    The start itself is returned if the inputs are not images.
    """
    if start.ndim != IMAGE_AXES:
        return start
    start = start if len(start) > 1 else torch.zeros_like(start)
    for image in range(len(start)):
        least, best = misfit(equations, start), start
        for colour in colours(start.shape[1]):
            if stopping.over:
                return best
            flat = start.clone()
            flat[image] += start.new_tensor(colour)[:, None, None]
            if (left := misfit(equations, flat)) < least:
                least, best = left, flat
        start = best
    return start


def colours(channels: int) -> list[tuple[float, ...]]:
    """Return the colours that are tried, one value for each channel."""
    if channels > COLOURED:
        return [(level,) * channels for level in LEVELS]
    return list(product(LEVELS, repeat=channels))


def misfit(equations: BatchEquations, x: Tensor) -> float:
    """Return the squared misfit of inputs (B, …); infinity where the network overflows."""
    z = equations.function.pack(x.double(), equations.parted(equations.target)["(label)"])
    squares = float(equations.residual(z).square().sum())
    return squares if math.isfinite(squares) else math.inf


@dataclass(frozen=True, eq=False)
class NewtonSolution:
    """What Gauss–Newton found for a batch."""

    inputs: Tensor  # the inputs (B, …), in float64
    labels: Tensor  # the labels (B, C)
    certificate: Certificate  # what is proved of them
    misfit: float  # what remains of the gradient, relative to its size
    steps: int  # how many steps were taken
    stuck: bool  # whether no step lowers the misfit any more

    @property
    def explained(self) -> bool:
        """Return whether every layer of the share is explained to within its rounding."""
        return self.certificate.explained

    @property
    def finished(self) -> bool:
        """Return whether the share is explained, and the errors could be predicted."""
        return self.explained and self.certificate.error is not None


# Another solution is looked for from so many starts; from more if layers are frozen, as what they
# hide can be exchanged, and from all of them if the input has few unknowns.
LOOKS, LOOKS_IN_PART, FEW_UNKNOWNS = 2, 4, 256
# A walk from there takes as many steps as the first solution did, within these bounds.
LOOK_STEPS, LOOK_STEPS_OF_FEW = (12, 25), 60
FEW_ROUNDS = 4  # of masks, where units switch
APART = 1e3  # two solutions differ if an entry does by more than so many of its errors


def second_look(
    method: GaussNewton, model: BatchModel, share: GradientShare, known: BatchKnowledge,
    found: NewtonSolution,
) -> str:  # fmt: skip
    """Return that another solution was found from far away, or nothing if none was."""
    if (error := found.certificate.error) is None:
        return ""
    few = model.exact.unknowns <= FEW_UNKNOWNS
    steps = LOOK_STEPS_OF_FEW if few else min(max(found.steps, LOOK_STEPS[0]), LOOK_STEPS[1])
    looks = LOOKS if _whole(model.exact) else LOOKS_IN_PART
    for start in far_starts(found.inputs)[: None if few else looks]:
        other = method.brief(steps).run(model, share, known, start, Stopping(steps))
        if other.explained and differ(other.inputs, found.inputs, error):
            return "solved for again from elsewhere, other inputs explain the share as well"
    return ""


def far_starts(x: Tensor) -> list[Tensor]:
    """Return starts (B, …) that keep nothing of inputs ``x`` but their brightness, or less."""
    generator = torch.Generator().manual_seed(0)
    flat = x.flatten(1)
    mean, spread = float(flat.mean()), max(float(flat.std(correction=0)), 1e-6)
    order = torch.randperm(flat.shape[1], generator=generator)
    shuffled = flat[:, order.to(x.device)].view_as(x)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
    halves = torch.ones_like(flat)
    halves[:, flat.shape[1] // 2 :] = -1
    return [
        shuffled, 2 * mean - x, -shuffled, mean + 2 * spread * noise,
        noise, 4 * noise, shuffled + halves.view_as(x), shuffled - halves.view_as(x),
    ]  # fmt: skip


def differ(one: Tensor, other: Tensor, error: Tensor) -> bool:
    """Return whether solutions (B, …), in any order, differ by more than errors explain."""
    limit = APART * error
    nearest = [min(float(((own - each).abs() / limit).max()) for each in other) for own in one]
    return max(nearest) > 1


def _whole(function: BatchFunction) -> bool:
    """Return whether everything that acts on an input has sent its gradient."""
    constants = any(
        buffer.is_floating_point()
        for module in function.model.model.modules()
        if not isinstance(module, nn.modules.batchnorm._BatchNorm)
        for buffer in module.buffers(recurse=False)
    )
    return len(function.names) == len(function.model.parameters) and not constants


@dataclass(frozen=True)
class GaussNewton:
    """Solve for inputs with every number of a share at once, by Levenberg–Marquardt.

    The network has to be smooth. Its Jacobian is the certificate: an input that explains every
    layer to within rounding, and that the share determines, is ``PROVED``.

    Example:
        >>> from softleak.matching import GaussNewton
        >>> GaussNewton(seconds=60).dense
        4096
    """

    descent: DampedDescent = field(default_factory=DampedDescent)  # how steps are taken and damped
    dense: int = 4096  # the most unknowns, whose normal matrix is held
    memory: int = 2 << 30  # the bytes that the Jacobian and its products may take
    seconds: float | None = None  # the time limit, after which the best input so far is returned
    escape: FoldEscape | None = field(default_factory=FoldEscape)  # leads a stuck walk on
    flat: bool = True  # whether an attempt begins at the colour of the image
    masks: MaskDescent = field(default_factory=MaskDescent)  # leads to the masks of ReLUs

    def __post_init__(self) -> None:
        if self.dense < 1 or self.memory < 1:
            raise OptionError(
                f"expected a positive number of unknowns and of bytes, got dense={self.dense} and "
                f"memory={self.memory}"
            )

    @property
    def evaluations(self) -> int:
        """Return the largest number of steps from one start."""
        return self.descent.steps

    def attempt(self, number: int) -> GaussNewton:
        """Return the method of an attempt: the first one is brisk, those that follow are cautious.

        Those with even numbers damp rough parts less, or all would end in the same wrong place.
        """
        if number == 0:
            return self
        descent = replace(self.descent, damping=self.descent.damping.cautious(number % 2 == 1))
        return replace(self, descent=descent)

    def brief(self, steps: int) -> GaussNewton:
        """Return the method for a first look: few steps, and none after it got stuck in float32."""
        descent = replace(self.descent, steps=steps, hopeless=self.descent.precise)
        masks = replace(self.masks, rounds=min(self.masks.rounds, FEW_ROUNDS))
        return replace(self, descent=descent, escape=None, masks=masks)

    def roughness(self, subject: Subject, shape: tuple[int, ...]) -> str:
        """Return why the network of a subject is not smooth between switches, or nothing."""
        return self._kind(subject, shape)[0]

    def switches(self, subject: Subject, shape: tuple[int, ...]) -> bool:
        """Return whether units of a network switch, so that its masks have to be found."""
        reason, units = self._kind(subject, shape)
        return not reason and units > 0

    def _kind(self, subject: Subject, shape: tuple[int, ...]) -> tuple[str, int]:
        """Return why a network is not smooth between switches, and how many units switch."""
        known = subject.once(_known)
        if shape not in known:
            model = self.model(subject, tuple(subject.parameters), (1, *shape))
            exact, units = model.exact, 0
            reason, gated = why_not_smooth(exact), GatedModel.of(model).exact
            if reason and gated.units and GatedModel.of(model).room >= 2 * self.masks.least:
                units = gated.units
                generator = torch.Generator().manual_seed(0)
                x = torch.randn(exact.pixels, generator=generator, dtype=torch.double)
                reason = why_not_smooth(gated.held(gated.own(x)[len(x) :]))
                z = torch.cat([x, x.new_full((exact.unknowns - len(x),), 0.1)])
                with torch.no_grad():
                    off = float((gated.rows(gated.own(z)) - exact.rows(z)).norm())
                    if not off <= ALIKE * float(exact.rows(z).norm()):
                        reason = "its units cannot be written as inputs times masks"
            known[shape] = reason, units
        found: tuple[str, int] = known[shape]
        return found

    def model(self, subject: Subject, names: Sequence[str], shape: tuple[int, ...]) -> BatchModel:
        """Return the network of a subject for batches of shape (B, …), made once and remembered."""
        made = subject.once(_known)
        key = (tuple(names), shape, self.memory)
        if key not in made:
            made[key] = NewtonModel.of(subject, tuple(names), shape, self.memory)
        found: BatchModel = made[key]
        return found

    def flat_start(
        self, subject: Subject, share: GradientShare, known: BatchKnowledge, start: Tensor,
        stopping: Stopping,
    ) -> Tensor:  # fmt: skip
        """Return images (B, …) of the flat colours that explain the share best."""
        if not self.flat:
            return start
        model = self._sent_model(subject, share, start)
        equations = known.equations(model.exact, share, model.client.like.dtype)
        return flat_images(equations, start.double(), stopping)

    def _sent_model(self, subject: Subject, share: GradientShare, start: Tensor) -> BatchModel:
        """Return the network for batches like ``start`` (B, …) and what the share holds of it."""
        names = tuple(name for name in subject.parameters if name in share)
        return self.model(subject, names, tuple(start.shape))

    def run(
        self, model: BatchModel, share: GradientShare, known: BatchKnowledge, start: Tensor,
        stopping: Stopping,
    ) -> NewtonSolution:  # fmt: skip
        """Return where the walk from inputs ``start`` (B, …) ends, and what is proved of it."""
        began = time.perf_counter()
        exact = model.exact
        equations = known.equations(exact, share, model.client.like.dtype)
        z = exact.pack(start.double(), known.labels.double())
        # Fused attention kernels cannot be differentiated twice; the plain one can.
        with sdpa_kernel(SDPBackend.MATH):
            walk, certificate = self._walked(model, equations, z, stopping)
        r, rows = walk.r * equations.deviation, sum(exact.sizes[name] for name in exact.names)
        misfit = float(r[:rows].norm() / equations.target[:rows].norm())
        certificate = replace(certificate, seconds=time.perf_counter() - began)
        return NewtonSolution(
            exact.inputs(walk.z), exact.labels(walk.z), certificate, misfit, walk.steps, walk.stuck
        )

    def _walked(
        self,
        model: BatchModel,
        equations: BatchEquations,
        z: Tensor,
        stopping: Stopping,
    ) -> tuple[Walk, Certificate]:
        """Return the walk from ``z`` (n,), and what is proved of its end."""
        if model.exact.unknowns > self.dense:
            raise ModelError(
                f"{model.exact.unknowns} unknowns are too many for a normal matrix of {self.dense}"
            )
        metric = Metric.of_images(model.exact.shape, self.descent.damping.smoothness)
        steps, gated = NormalSteps(model, equations, metric), GatedModel.of(model)
        if gated.exact.units:
            z = self.masks(gated, equations, metric, z, self.descent.precise, stopping)
        walk = self.descent(steps, z, stopping)
        if walk.stuck and self.escape is not None:
            walk = self.escape(self.descent, walk, steps, stopping)
        products = model.products(torch.float64)
        return walk, Certifier(equations, model.client, products, steps.used, gated.exact)(walk)

    def solve(
        self, subject: Subject, share: GradientShare, known: BatchKnowledge, start: Tensor,
        stopping: Stopping | None = None,
    ) -> NewtonSolution:  # fmt: skip
        """Solve from one start (B, …) for a batch whose share is at the scale of the loss."""
        model = self._sent_model(subject, share, start)
        ending = stopping or Stopping(self.evaluations, self.seconds)
        found = self.run(model, share, known, start, ending)
        if found.certificate.expected is None:
            return found
        doubt = self.roughness(subject, tuple(start.shape[1:]))
        if found.certificate.proved:
            doubt = doubt or second_look(self, model, share, known, found)
        if not doubt:
            return found
        refused = replace(found.certificate, proved=False, reason=doubt, expected=None)
        return replace(found, certificate=refused)


def _known(_: Subject) -> dict[object, Any]:
    """Return what was found out of a subject: how smooth it is, and its models."""
    return {}


FLAT = 2  # the number of the attempt that begins at a flat colour


def solve_from_starts(
    method: GaussNewton, subject: Subject, share: GradientShare, known: BatchKnowledge,
    starts: Sequence[Tensor], stopping: Stopping, near: bool = False,
) -> NewtonSolution:  # fmt: skip
    """Return the solution of least misfit over starts (B, …), tried until one explains the share.

    If the first of several attempts gets stuck or takes long, it is taken up again last of all: a
    cautious attempt more often finds the way, and sooner. If it explains the share already and only
    lacks its errors, it is taken up at once. Unless the starts are near, the third attempt begins
    at the flat colour that explains the share best.
    """
    first = method.brief(max(1, method.descent.steps // 3)) if len(starts) > 1 else method
    found = [first.solve(subject, share, known, starts[0], stopping)]

    def further() -> Iterator[tuple[GaussNewton, Tensor]]:
        if found[0].explained:
            yield method, found[0].inputs
        for attempt, start in enumerate(starts[1:], 1):
            flat = attempt == FLAT and not near
            begin = method.flat_start(subject, share, known, start, stopping) if flat else start
            yield method.attempt(attempt), begin
        if len(starts) > 1:
            yield method, found[0].inputs

    def best() -> NewtonSolution:
        return min(found, key=lambda one: (not one.finished, one.misfit))

    ways = further()
    while not (best().finished or stopping.over) and (way := next(ways, None)):
        found.append(way[0].solve(subject, share, known, way[1], stopping))
    return best()


def described(found: NewtonSolution, stopping: Stopping) -> Reconstruction:
    """Return a solution for the inputs (B, …) as the answer of gradient matching."""
    certificate = found.certificate
    status = Status.CONVERGED if found.stuck else stopping.ended
    if found.explained and status is Status.EXHAUSTED:
        status = Status.CONVERGED
    return Reconstruction(
        Status.PROVED if certificate.proved else status, found.inputs, found.labels,
        found.misfit**2, found.misfit, found.steps, certificate.reason,
        certificate.error if certificate.expected is None else certificate.expected, certificate,
    )  # fmt: skip
