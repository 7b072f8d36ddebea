"""This module solves for the inputs of a whole batch by Gauss–Newton steps on its share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from softleak.matching.differentiable_model import DifferentiableModel
from softleak.matching.gauss_newton.batch_function import BatchFunction
from softleak.matching.gauss_newton.certificate import Certificate
from softleak.matching.gauss_newton.damped_descent import DampedDescent, Walk
from softleak.matching.gauss_newton.image_metric import roughness_metric
from softleak.matching.gauss_newton.matrix_free import MatrixFree
from softleak.matching.gauss_newton.normal_step import NormalEquations
from softleak.matching.gauss_newton.pixel_certificate import Certifier, ProofSettings
from softleak.matching.gauss_newton.share_equations import BatchKnowledge, ShareEquations
from softleak.matching.gauss_newton.tangent_products import TangentProducts
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(eq=False)
class NewtonModel:
    """This holds a network in both precisions, for batches of one shape, with recorded products.

    Attributes:
        exact: the batch function in float64.
        quick: the batch function in float32.
        client: the batch function in the dtype in which clients compute.
        memory: the bytes that products and the Jacobian may take together.
    """

    exact: BatchFunction
    quick: BatchFunction
    client: BatchFunction
    memory: int
    _products: dict[torch.dtype, TangentProducts] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, subject: Subject, names: tuple[str, ...], shape: tuple[int, ...], memory: int
    ) -> NewtonModel:
        """Copy the model of a subject for batches of shape (B, …).

        Raises:
            ModelError: if a dropout layer is in train mode.
        """

        def copied(dtype: torch.dtype) -> BatchFunction:
            model = DifferentiableModel.of(subject.model, subject.head, dtype)
            return BatchFunction(model, names, shape)

        own = next(iter(subject.parameters.values())).dtype
        exact, quick = copied(torch.float64), copied(torch.float32)
        client = {torch.float64: exact, torch.float32: quick}.get(own) or copied(own)
        return cls(exact, quick, client, memory)

    def products(self, dtype: torch.dtype) -> TangentProducts:
        """Return products with the Jacobian in float32 or float64."""
        if dtype not in self._products:
            function = self.quick if dtype is torch.float32 else self.exact
            self._products[dtype] = TangentProducts(function, self.memory // 4)
        return self._products[dtype]

    def kept(self, seed: int = 0) -> Tensor | None:
        """Return the indices of rows for which a Jacobian fits in memory; None means all.

        Small layers are kept whole. Of large ones as many entries are drawn as fit.
        """
        sizes = list(self.exact.sizes.values())
        room = self.memory // 2 // (8 * self.exact.unknowns)
        if sum(sizes) <= room:
            return None
        low, high = 1, max(sizes)
        while low < high:
            middle = (low + high + 1) // 2
            fits = sum(min(size, middle) for size in sizes) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        generator = torch.Generator().manual_seed(seed)
        chosen, begin = [], 0
        for size in sizes:
            order = torch.randperm(size, generator=generator)[:low] if size > low else None
            own = torch.arange(size) if order is None else order.sort().values
            chosen.append(own + begin)
            begin += size
        return torch.cat(chosen)


@dataclass(frozen=True, eq=False)
class NewtonSolution:
    """This holds what Gauss–Newton found for a batch.

    Attributes:
        inputs: the inputs (B, …), in float64.
        labels: the labels (B, C).
        certificate: what is proved of them.
        misfit: what remains of the gradient, relative to its size.
        steps: how many steps were taken.
        stuck: whether no step lowers the misfit any more.
    """

    inputs: Tensor
    labels: Tensor
    certificate: Certificate
    misfit: float
    steps: int
    stuck: bool


@dataclass(frozen=True)
class NewtonRun:
    """This runs Gauss–Newton from one start and certifies where it ends.

    Attributes:
        descent: how steps are taken.
        proof: what a proof asks for.
        dense: the largest number of unknowns whose normal matrix is held; beyond it, steps are
            found without a matrix and nothing is proved.
    """

    descent: DampedDescent = field(default_factory=DampedDescent)
    proof: ProofSettings = field(default_factory=ProofSettings)
    dense: int = 4096

    def __call__(
        self,
        model: NewtonModel,
        share: GradientShare,
        known: BatchKnowledge,
        start: Tensor,
        stopping: Stopping,
    ) -> NewtonSolution:
        """Return where the walk from inputs ``start`` (B, …) ends."""
        began = time.perf_counter()
        dtype = model.client.model.like.dtype
        equations = ShareEquations.of(model.exact, share, known, dtype)
        z = model.exact.pack(start.double(), known.labels.double())
        # Fused attention kernels cannot be differentiated twice; the plain one can.
        with sdpa_kernel(SDPBackend.MATH):
            walk, certificate = self._walked(model, equations, z, stopping)
        found, r = model.exact, walk.r * equations.deviation
        rows = equations.gradient_rows
        misfit = float(r[:rows].norm() / equations.target[:rows].norm())
        certificate = replace(certificate, seconds=time.perf_counter() - began)
        return NewtonSolution(
            found.inputs(walk.z), found.labels(walk.z), certificate, misfit, walk.steps, walk.stuck
        )

    def _walked(
        self, model: NewtonModel, equations: ShareEquations, z: Tensor, stopping: Stopping
    ) -> tuple[Walk, Certificate]:
        """Return the walk from ``z`` (n,), and what is proved of its end."""
        if model.exact.unknowns > self.dense:
            walk = MatrixFree()(equations, z, model.products, stopping)
            reason = (
                f"{model.exact.unknowns} unknowns are too many for a normal matrix, so nobody "
                "checked which of them the share determines"
            )
            return walk, Certificate(False, reason, misfits=walk.misfits)
        kept = model.kept()
        metric = roughness_metric(model.exact.shape, self.descent.damping.smoothness)

        held: dict[torch.dtype, Tensor] = {}

        def linearised(z: Tensor, r: Tensor, dtype: torch.dtype) -> NormalEquations:
            out = held.pop(dtype, None)
            held.clear()  # what another precision left behind
            if kept is None:
                held[dtype], r = model.products(dtype).reduced(z, r, equations.weight, out)
            else:
                held[dtype] = model.products(dtype).jacobian(z, equations.weight, kept, out)
                r = r[kept]
            found = NormalEquations.of(held[dtype], r)
            return found.measured_by(metric, model.exact.pixels)

        walk = self.descent(equations, z, linearised, stopping)
        used = torch.ones_like(equations.weight)
        if kept is not None:
            used = torch.zeros_like(used).index_fill_(0, kept, 1.0)
        products = model.products(torch.float64)
        return walk, Certifier(equations, model.client, products, used, self.proof)(walk)
