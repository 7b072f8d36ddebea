"""This module holds Gauss–Newton as a configured callable: settings first, share after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from softleak.errors import OptionError
from softleak.matching.gauss_newton.damped_descent import DampedDescent
from softleak.matching.gauss_newton.flat_start import FlatSearch
from softleak.matching.gauss_newton.fold_escape import FoldEscape
from softleak.matching.gauss_newton.newton_model import NewtonModel
from softleak.matching.gauss_newton.newton_solver import NewtonRun, NewtonSolution
from softleak.matching.gauss_newton.pixel_certificate import ProofSettings
from softleak.matching.gauss_newton.second_look import SecondLook
from softleak.matching.gauss_newton.share_equations import BatchKnowledge, ShareEquations
from softleak.matching.gauss_newton.smoothness import SmoothnessProbe
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class GaussNewton:
    """Solve for inputs with every number of a share at once, by Levenberg–Marquardt.

    The network has to be smooth. Its Jacobian is the certificate: an input that explains every
    layer to within rounding, and that the share determines, is ``PROVED``.

    Attributes:
        descent: how steps are taken and damped.
        proof: what a proof asks for.
        probe: how the network is probed for smoothness.
        dense: the largest number of unknowns whose normal matrix is held. Beyond it steps are
            found without a matrix, and nothing is proved.
        memory: the bytes that the Jacobian and its products may take.
        seconds: the time after which the best input so far is returned; None means no limit.
        escape: how a walk that got stuck is led on; None means that it is not.
        contrast: the size of the noise that a search begins with, if no start is near. Small
            noise is nearly grey.
        flat: how the colour of the whole image is looked for; None means that it is not.
        second_look: how a second solution is looked for before anything is called proved; None
            means that it is not.

    Example:
        >>> from softleak.matching import GaussNewton
        >>> GaussNewton(seconds=60).dense
        4096
    """

    descent: DampedDescent = field(default_factory=DampedDescent)
    proof: ProofSettings = field(default_factory=ProofSettings)
    probe: SmoothnessProbe = field(default_factory=SmoothnessProbe)
    dense: int = 4096
    memory: int = 2 << 30
    seconds: float | None = None
    escape: FoldEscape | None = field(default_factory=FoldEscape)
    contrast: float = 0.05
    flat: FlatSearch | None = field(default_factory=FlatSearch)
    second_look: SecondLook | None = field(default_factory=SecondLook)

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

        Those with even numbers damp rough parts of an image less, because attempts that go the same
        way end in the same wrong place.

        Args:
            number: the number of the attempt, from 0.
        """
        if number == 0:
            return self
        descent = replace(self.descent, damping=self.descent.damping.cautious(number % 2 == 1))
        return replace(self, descent=descent)

    @property
    def brief(self) -> GaussNewton:
        """Return the method for a first look: few steps, and none after it got stuck in float32."""
        steps = max(1, self.descent.steps // 3)
        descent = replace(self.descent, steps=steps, hopeless=self.descent.precise)
        return replace(self, descent=descent, escape=None)

    def roughness(self, subject: Subject, shape: tuple[int, ...]) -> str:
        """Return why the network of a subject is not smooth, or nothing if it is.

        Args:
            subject: the model made ready.
            shape: the shape of one input.
        """
        known = subject.once(_roughness)
        key = (shape, self.probe)
        if key not in known:
            model = self.model(subject, tuple(subject.parameters), (1, *shape))
            known[key] = self.probe(model.exact)
        return known[key]

    def model(self, subject: Subject, names: Sequence[str], shape: tuple[int, ...]) -> NewtonModel:
        """Return the network of a subject for batches of shape (B, …), made once and remembered."""
        made = subject.once(_newton_models)
        key = (tuple(names), shape, self.memory)
        if key not in made:
            made[key] = NewtonModel.of(subject, tuple(names), shape, self.memory)
        return made[key]

    def flat_start(
        self,
        subject: Subject,
        share: GradientShare,
        known: BatchKnowledge,
        start: Tensor,
        stopping: Stopping,
    ) -> Tensor:
        """Return images (B, …) of the flat colours that explain the share best.

        Args:
            subject: the model made ready.
            share: what was sent, at the scale of the loss.
            known: what is known of the samples.
            start: the inputs (B, …) to begin with, near to grey.
            stopping: it is asked whether to go on.
        """
        if self.flat is None:
            return start
        model = self._sent_model(subject, share, start)
        equations = ShareEquations.of(model.exact, share, known, model.client.model.like.dtype)
        return self.flat(equations, start.double(), stopping)

    def _sent_model(self, subject: Subject, share: GradientShare, start: Tensor) -> NewtonModel:
        """Return the network for batches like ``start`` (B, …) and what the share holds of it."""
        names = tuple(name for name in subject.parameters if name in share)
        return self.model(subject, names, tuple(start.shape))

    def solve(
        self,
        subject: Subject,
        share: GradientShare,
        known: BatchKnowledge,
        start: Tensor,
        stopping: Stopping | None = None,
    ) -> NewtonSolution:
        """Solve for the inputs of a batch from one start.

        Args:
            subject: the model made ready.
            share: what was sent, at the scale of the loss.
            known: the labels (B, C) and, if they were recovered, the features (B, I).
            start: the first iterate (B, …).
            stopping: what may end the run, beside the steps and ``seconds``.
        """
        model = self._sent_model(subject, share, start)
        ending = stopping or Stopping(self.evaluations, self.seconds)
        run = NewtonRun(self.descent, self.proof, self.dense, self.escape)
        found = run(model, share, known, start, ending)
        if not found.certificate.proved:
            return found
        doubt = self.roughness(subject, tuple(start.shape[1:]))
        if not doubt and self.second_look is not None:
            doubt = self.second_look(run, model, share, known, found)
        if doubt:
            certificate = replace(found.certificate, proved=False, reason=doubt)
            return replace(found, certificate=certificate)
        return found


def _roughness(_: Subject) -> dict[tuple[tuple[int, ...], SmoothnessProbe], str]:
    return {}


def _newton_models(_: Subject) -> dict[tuple[tuple[str, ...], tuple[int, ...], int], NewtonModel]:
    return {}
