"""How near any attack comes to an image behind Gaussian noise: a Bayesian Cramér–Rao bound.

Of images ``u`` from a prior, and of every estimate ``û`` of every attack, van Trees says

    E ‖û − u‖² ≥ tr A⁻¹    with    A = E[Jᵀ J] / σ² + P

where ``J`` is the Jacobian of the gradient at ``u``, ``σ`` the noise and ``P`` the inverse
covariance of a normal prior. As ``tr A⁻¹`` is convex, its tangent at any ``W⁻¹`` is below it,

    tr A⁻¹ ≥ 2 tr W − tr(W A W),

and linear in ``A``: draws that had no part in ``W`` estimate it without bias. ``W`` is diagonal in
the basis of the prior; a rough one makes the bound lower, and never wrong. ``tr(W Jᵀ J W)`` is the
mean of ``‖W Jᵀ r‖²`` over random signs ``r``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from softleak.bounds.gaussians import weakest
from softleak.core.client import ArrayLike
from softleak.core.errors import ModelError, OptionError
from softleak.core.forward import logits_of
from softleak.core.input_spec import AS_THEY_ARE, Normalisation
from softleak.core.loss import CROSS_ENTROPY, Loss, named_loss
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.equations import BatchFunction
from softleak.matching.gauss_newton.method import why_not_smooth
from softleak.matching.gauss_newton.metric import image_waves
from softleak.matching.problems import DifferentiableModel

GREY = 0.5  # the mean of a pixel beforehand
ROUGH, DRAWS = 64, 128  # images for ``W``, and for the bound
SKETCHES, SEED = 8, 0  # at an image, and of all draws
CONFIDENCE = 0.99  # of the lower end, if the mean over draws is normal
MOST_PIXELS = 4096  # entries of an input
SMOOTH_LOSSES = ("ce", "bce", "mse")
RECOGNISABLE = 20.0  # dB from which on an image counts as given away


@dataclass(frozen=True, eq=False)
class ImagePrior:
    """Pixels of range one before the attack: normal, with independent parts along a basis."""

    mean: Tensor  # (C, H, W)
    basis: Tensor  # orthonormal rows (n, n)
    variances: Tensor  # along each of them (n,)
    normalisation: Normalisation = AS_THEY_ARE  # how pixels become inputs

    @classmethod
    def of(cls, shape: tuple[int, ...], normalisation: Normalisation | None = None) -> ImagePrior:
        """Return smooth images around grey: frequencies fall off as they do in photographs."""
        mean = torch.full(shape, GREY, dtype=torch.double)
        return cls(mean, *image_waves(shape), normalisation or AS_THEY_ARE)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return images (count, n) as vectors."""
        parts = torch.randn(count, len(self.basis), generator=generator, dtype=torch.double)
        return self.mean.flatten() + (parts * self.variances.sqrt()) @ self.basis

    @property
    def error(self) -> float:
        """The mean squared error of an attacker who sees nothing, by pixel."""
        return float(self.variances.mean())


@dataclass(frozen=True)
class PixelBound:
    """The least mean squared error, by pixel of range one, of any estimate of an image."""

    error: float  # the bound, an estimate of it
    low: float  # its lower end, with a confidence of 99 % if the mean over the draws is normal
    chance: float  # the error of who sees nothing but knows the prior
    noise: float  # the noise's standard deviation on every entry of the gradient
    target: float  # the PSNR in dB up to which an image counts as hidden

    @property
    def psnr(self) -> float:
        """Return the PSNR in dB that belongs to ``low``: no attack's mean error is smaller."""
        return -10 * math.log10(self.low) if self.low > 0 else math.inf

    @property
    def hidden(self) -> bool:
        """Return whether the mean squared error of every attack stays above the target's."""
        return self.psnr <= self.target

    @property
    def message(self) -> str:
        """Return the verdict in a sentence."""
        from softleak.present.bounds import pixels_in_words  # above, where words are made

        return pixels_in_words(self)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what the bound rests on, in sentences."""
        from softleak.present.bounds import pixels_rest_on  # above, where words are made

        return tuple(pixels_rest_on(self))


@dataclass(frozen=True, eq=False)
class PixelBounds:
    """Bounds on the images behind one network's gradients, at every noise."""

    gradient: Callable[[Tensor], Tensor]  # of pixels (n,), all parameters in one (R,)
    prior: ImagePrior

    @classmethod
    def of(
        cls, subject: Subject, y: Tensor, prior: ImagePrior, loss: Loss = CROSS_ENTROPY
    ) -> PixelBounds:
        """Return the bounds for the gradient of one sample of this label (C,).

        Raises ``ModelError`` of a network that is not known to be smooth, since the gradient has to
        be differentiable in the image, and of more than 4096 pixels.
        """
        if prior.mean.numel() > MOST_PIXELS:
            raise ModelError(f"expected an input of at most {MOST_PIXELS} entries")
        if loss.name not in SMOOTH_LOSSES:
            raise OptionError(f"expected one of {', '.join(SMOOTH_LOSSES)}, got {loss.name!r}")
        exact = DifferentiableModel.of(subject.model, subject.head, torch.float64)
        names, shape = tuple(subject.parameters), (1, *prior.mean.shape)
        if why := why_not_smooth(BatchFunction(exact, names, shape)):
            raise ModelError(f"no bound holds on the image: {why}")
        return cls(_gradient_of(subject.model, y, prior, loss), prior)

    def at(self, noise: float, target: float = RECOGNISABLE) -> PixelBound:
        """Return the bound behind noise of this standard deviation."""
        from scipy.special import stdtrit  # slow to import

        found = PixelBound(0.0, 0.0, self.prior.error, noise, target)
        if not noise:
            return found
        known, (rough, drawn) = 1 / self.prior.variances, self._sketches
        W = 1 / (rough.square().mean((0, 1)) / noise**2 + known)
        seen = (drawn * W).square().sum(2).mean(1) / noise**2
        below = (2 * W.sum() - (W.square() * known).sum() - seen) / len(W)
        error = float(stdtrit(DRAWS - 1, CONFIDENCE)) * float(below.std()) / math.sqrt(DRAWS)
        bound = float(below.mean())
        return replace(found, error=max(bound, 0.0), low=max(bound - error, 0.0))

    def weakest(self, target: float) -> PixelBound | None:
        """Return the bound at the weakest noise that hides an image from ``target`` dB on.

        None if the prior alone tells as much.
        """
        if -10 * math.log10(self.prior.error) >= target:
            return None
        return self.at(weakest(lambda noise: self.at(noise, target).hidden, 1.0), target)

    @cached_property
    def _sketches(self) -> tuple[Tensor, Tensor]:
        """``Jᵀ r`` along the basis at two sets of images, (K, S, n) each, ``r`` random signs."""
        generator = torch.Generator().manual_seed(SEED)
        return self._drawn(ROUGH, generator), self._drawn(DRAWS, generator)

    def _drawn(self, images: int, generator: torch.Generator) -> Tensor:
        found = []
        for u in self.prior.draw(images, generator):
            here = vjp(self.gradient, u)
            size = SKETCHES, len(here[0])
            r = torch.randint(0, 2, size, generator=generator).to(here[0]) * 2 - 1
            found.append(vmap(here[1])(r)[0].detach() @ self.prior.basis.T)
        return torch.stack(found)


def _gradient_of(
    model: nn.Module, y: Tensor, prior: ImagePrior, loss: Loss
) -> Callable[[Tensor], Tensor]:
    """Return what a client sends of one sample, as a function of its pixels (n,)."""
    own = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    rest = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    rest |= dict(model.named_buffers())
    like = next(iter(own.values()))

    def gradient(u: Tensor) -> Tensor:
        x = prior.normalisation.apply(u.to(like).view(prior.mean.shape))[None]

        def lost(weights: dict[str, Tensor]) -> Tensor:
            logits = logits_of(functional_call(model, {**rest, **weights}, (x,)))
            return loss(torch.as_tensor(logits), y.to(like)[None])

        return torch.cat([g.flatten() for g in grad(lost)(own).values()])

    return gradient


def bound_pixels(
    model: nn.Module, y: ArrayLike, prior: ImagePrior, *, noise: float,
    target: float = RECOGNISABLE, loss: Loss | str = CROSS_ENTROPY,
) -> PixelBound:  # fmt: skip
    """Bound from below the mean squared error of every attack on the image of one sample.

    The attacker knows the model, the label and the prior. The mean is over images of the prior and
    over the noise: of a single image an attack may come nearer.

    Args:
        model: the network, in the mode the client uses. It has to be smooth.
        y: the label of the sample: a class index, or (C,).
        prior: what is known of the image beforehand.
        noise: the standard deviation of the Gaussian noise on every entry of the gradient. In a
            mean over B samples that do not touch one another the noise counts B times as much.
        target: the PSNR in dB up to which an image counts as hidden.
        loss: what the client minimises.
    """
    if not noise >= 0:
        raise OptionError(f"expected noise of 0 or more, got {noise}")
    subject = Subject.of(model, tuple(prior.mean.shape))
    kind = named_loss(loss)
    label = torch.as_tensor(y)
    if label.ndim == 0 and kind.balanced:
        label = torch.eye(subject.head.classes)[int(label)]
    kind.check(label)
    return PixelBounds.of(subject, label, prior, kind).at(noise, target)
