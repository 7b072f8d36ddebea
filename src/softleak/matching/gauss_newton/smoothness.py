"""Tell whether a network is smooth: by its layers, and by how its gradient bends."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softleak.matching.gauss_newton.equations import BatchFunction

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


@dataclass(frozen=True)
class SmoothnessProbe:
    """Measure how the second difference of the gradient shrinks with the distance.

    ``‖g(x + hv) − 2 g(x) + g(x − hv)‖`` shrinks like ``h²`` where the gradient is smooth. Where
    units switch, it shrinks more slowly: their number grows like ``h``, and each switch is a jump.
    """

    distances: tuple[float, ...] = (0.03, 0.01, 0.003, 0.001)  # ``h``, for inputs of size one
    directions: int = 3  # along how many random directions the gradient is probed
    least_order: float = 1.75  # the order of shrinking from which on the gradient counts as smooth
    noise: float = 1e-12  # a second difference below this part of the gradient is rounding
    seed: int = 0  # the seed of inputs and directions

    def __call__(self, function: BatchFunction) -> str:
        """Return why the network is not smooth, or nothing if it is."""
        x = function.model.like.new_zeros(function.shape)
        with torch.no_grad(), _Operations(x) as seen:
            function.model.model(x)
        if others := sorted(seen.names - SMOOTH):
            return f"the network is not known to be smooth: it uses {', '.join(others)}"
        generator = torch.Generator().manual_seed(self.seed)
        orders = [self._order(function, generator) for _ in range(self.directions)]
        if min(orders) < self.least_order:
            return (
                f"the gradient bends like a distance to the power {min(orders):.1f} (2 is smooth): "
                "units of the network switch"
            )
        return ""

    def _order(self, function: BatchFunction, generator: torch.Generator) -> float:
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
                for h in self.distances
            ]
        floor = self.noise * float(here.norm())
        orders = (
            math.log(b / d) / math.log(h / k)
            for (h, b), (k, d) in itertools.pairwise(zip(self.distances, bends, strict=True))
            if b > floor and d > floor
        )
        return min(orders, default=math.inf)
