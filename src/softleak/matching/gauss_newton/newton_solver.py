"""This module solves for the inputs of a whole batch by Gauss–Newton steps on its share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from softleak.matching.gauss_newton.certificate import Certificate
from softleak.matching.gauss_newton.damped_descent import DampedDescent, Walk
from softleak.matching.gauss_newton.fold_escape import FoldEscape
from softleak.matching.gauss_newton.matrix_free import MatrixFree
from softleak.matching.gauss_newton.newton_model import LinearisedShare, NewtonModel
from softleak.matching.gauss_newton.pixel_certificate import Certifier, ProofSettings
from softleak.matching.gauss_newton.share_equations import BatchKnowledge, ShareEquations
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare


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
        escape: how a walk that got stuck is led on; None means that it is not.
    """

    descent: DampedDescent = field(default_factory=DampedDescent)
    proof: ProofSettings = field(default_factory=ProofSettings)
    dense: int = 4096
    escape: FoldEscape | None = field(default_factory=FoldEscape)

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
            return self._walked_free(model, equations, z, stopping)
        linearised = LinearisedShare(model, equations, self.descent.damping.smoothness)
        walk = self.descent(equations, z, linearised, stopping)
        if walk.stuck and self.escape is not None:
            walk = self.escape(self.descent, walk, linearised, stopping)
        products = model.products(torch.float64)
        prove = Certifier(equations, model.client, products, linearised.used, self.proof)
        return walk, prove(walk)

    def _walked_free(
        self, model: NewtonModel, equations: ShareEquations, z: Tensor, stopping: Stopping
    ) -> tuple[Walk, Certificate]:
        """Return the walk from ``z`` (n,) without a normal matrix, and what is known of its end."""
        descend = MatrixFree(self.descent.steps, damping=self.descent.damping)
        walk = descend(equations, z, model.products, stopping)
        products, every = model.products(torch.float64), torch.ones_like(equations.weight)
        found = Certifier(equations, model.client, products, every, self.proof)(walk)
        if not found.explained:
            return walk, found
        reason = (
            f"{model.exact.unknowns} unknowns are too many for a normal matrix, so nobody "
            "checked which of them the share determines"
        )
        return walk, replace(found, proved=False, reason=reason)
