"""The input behind a share: computed exactly where the model allows it, else searched for.

This is the one place where the method is chosen. ``INPUT_ATTACKS`` lists the attacks, the strongest
first; a new one is a function in a file of its own and a line here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.audit.findings import Attempt, InputFinding, Method, Outcome, PixelMap
from softleak.audit.options import Options
from softleak.core.errors import in_a_line
from softleak.core.factors import factor
from softleak.core.input_spec import InputSpec
from softleak.core.normalisation import Normalisation
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import NoChain, chain_of
from softleak.inversion.patch_plan import NoPlan, patch_plan
from softleak.inversion.patches import invert_patches
from softleak.inversion.texts.plan import NoText, TextPlan, text_plan
from softleak.inversion.texts.read import read_bag, read_text
from softleak.inversion.texts.result import Text
from softleak.inversion.walk import Inversion, invert
from softleak.labels.decay import without_decay
from softleak.matching.gauss_newton.method import GaussNewton
from softleak.matching.optimisers import Adam
from softleak.matching.reconstruct import Matching, usual_objective
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.tasks import Noise


def invert_embedded(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding | None:
    """Compute the input from the gradients of embeddings; None if the model has none for it."""
    if recovery.noise:
        share = share.expecting(recovery.noise)
    if isinstance(subject.input_shape, InputSpec):
        return _text(subject, share, recovery)
    plan = subject.once(patch_plan)
    if isinstance(plan, NoPlan) or not {plan.weight, plan.positions} <= share.keys():
        return None
    found = invert_patches(plan, share)
    if not found.input.isfinite().all():
        return InputFinding(Method.EMBEDDING, "the equations have no finite solution")
    pixels = PixelMap.of(found.input, options.normalisation)
    return InputFinding(
        Method.EMBEDDING,
        found.message,
        pixels(found.input),
        replace(found, pixel=pixels.scale).psnr_predicted,
        found.determined,
        found.layers,
        pixels,
    )


def embeddings(subject: Subject) -> tuple[str, ...]:
    """Return the parameters that tell the input by themselves; a client may freeze them."""
    if isinstance(subject.input_shape, InputSpec):
        text = subject.once(text_plan)
        if not isinstance(text, TextPlan):
            return ()
        return (text.words,) if text.positions is None else (text.words, text.positions)
    plan = subject.once(patch_plan)
    return () if isinstance(plan, NoPlan) else (plan.weight, plan.positions)


def _text(subject: Subject, share: GradientShare, recovery: Recovery) -> InputFinding:
    found = read_text(subject, share, recovery)
    several = recovery.status is Status.NOT_SINGLE
    if several and isinstance(found, Text) and not found.explained:
        found = read_bag(subject, share, "the update mixes several texts, or was changed")
    return text_finding(found)


def text_finding(found: Text | NoText) -> InputFinding:
    """Return a text as a finding, or why there is none."""
    if isinstance(found, NoText):
        return InputFinding(Method.NONE, found.reason)
    return InputFinding(Method.TEXT, found.message, determined=found.certain, text=found)


def invert_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding:
    """Compute the input layer by layer, with its predicted error; or say why it cannot be."""
    chain = subject.once(chain_of)
    if isinstance(chain, NoChain):
        return InputFinding(Method.NONE, chain.reason)
    inverted = invert(subject.model, share, recovery, chain=chain)
    return _described(inverted, options.normalisation)


def _described(found: Inversion, normalisation: Normalisation | None) -> InputFinding:
    if not found.input.isfinite().all():
        return InputFinding(Method.INVERSION, "the equations have no finite solution")
    pixels = PixelMap.of(found.input, normalisation)
    message = (
        "every layer's equations determined its input, and agree"
        if found.determined
        else "some layer's equations do not determine its input, or contradict each other"
    )
    return InputFinding(
        Method.INVERSION,
        message,
        pixels(found.input),
        replace(found, pixel=pixels.scale).psnr_predicted,
        found.determined,
        found.layers,
        pixels,
    )


@dataclass(frozen=True)
class TimedMatching:
    """Gradient matching from several starts, with as many steps as the time allows.

    The number of steps is fixed beforehand, so that the learning rate can fall to its end.

    Attributes:
        starts: where the searches begin.
        rehearsals: the steps of short runs that tell how long a step takes; the first of them only
            warms up.
        planned: the part of the time that is planned for.
        fewest_steps: the steps that are planned at least; the time limit ends them if need be.
    """

    starts: tuple[Noise, ...] = (Noise(0), Noise(1))
    rehearsals: tuple[int, ...] = (2, 8)
    planned: float = 0.9
    fewest_steps: int = 50

    def __call__(
        self,
        subject: Subject,
        share: GradientShare,
        recovery: Recovery | BatchRecovery,
        seconds: float,
    ) -> tuple[Reconstruction, ...]:
        """Return one reconstruction per start."""
        subject = replace(subject, said_shape=subject.input_shape)
        count, objective = len(self.starts), usual_objective(recovery)

        def run(steps: int, left: float) -> tuple[Reconstruction, ...]:
            matching = Matching(
                objective=objective,
                start=self.starts,
                optimiser=Adam(steps=steps),
                seconds=left,
            )
            return matching(subject, [share] * count, [recovery] * count)

        begin = last = time.perf_counter()
        for steps in self.rehearsals:
            last = time.perf_counter()
            run(steps, seconds)
        now = time.perf_counter()
        left = max(seconds - (now - begin), 0.0)
        possible = int(self.planned * left / (now - last) * self.rehearsals[-1])
        return run(min(Adam().steps, max(self.fewest_steps, possible)), left)


@dataclass(frozen=True)
class Agreement:
    """A measure of how well two images agree, relative to their own contrast.

    Two flat images do not agree by being flat, and one bright pixel does not make the rest agree.

    Attributes:
        contrast: the standard deviation of a usual photograph's pixels, of range one.
        most: the largest agreement in dB; more than that is equality.
        least_contrast: the contrast that every image is taken to have at least.
    """

    contrast: float = 0.25
    most: float = 120.0
    least_contrast: float = 1e-12

    def __call__(self, one: Tensor, other: Tensor) -> float:
        """Return the PSNR in dB between two images, were their contrast a usual one."""
        own = float(torch.minimum(one.std(), other.std()))
        off = float((one - other).square().mean().sqrt())
        if off == 0.0:
            return self.most
        return min(-20 * math.log10(self.contrast * off / max(own, self.least_contrast)), self.most)


def agreement_of(one: Tensor, other: Tensor) -> float:
    """Return how well two images agree, in dB, by the default measure."""
    return Agreement()(one, other)


def match_input(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Search for an input whose gradient is near the share's, from two starts.

    The inputs of a batch are searched for together, and agree as well as the worst of them does.

    Args:
        subject: the model made ready, with a shape of its inputs.
        share: what was sent.
        recovery: what was recovered from it.
        options: how long to search, and how pixels became inputs.

    Returns:
        The better of the two inputs, and how well both agree. None if no time was given, or if
        nobody knows which input the model takes.
    """
    if options.seconds <= 0 or subject.input_shape is None:
        return None
    found = TimedMatching()(subject, share, recovery, options.seconds)
    best = min(found, key=lambda one: one.misfit)
    if best.input is None:
        return InputFinding(Method.NONE, f"matching could not be carried out: {best.message}")
    to_pixels = PixelMap.of(best.input, options.normalisation)
    several = isinstance(recovery, BatchRecovery)
    pixels = [_rows(to_pixels(one.input), several) for one in found if one.input is not None]
    agreed = [agreement_of(*pair) for pair in zip(*pixels, strict=True) if len(pair) > 1]
    agreement = min(agreed, default=None)
    said = "" if agreement is None else f", and two starts agree to {agreement:.0f} dB"
    message = (
        f"gradients were matched: that of {'these images' if several else 'this image'} differs "
        f"from the share's by {best.misfit:.0%}{said}"
    )
    shown = _rows(to_pixels(best.input), several)
    return InputFinding(
        Method.MATCHING, message, shown[0], to_pixels=to_pixels, misfit=best.misfit,
        agreement=agreement, batch=shown if several else (),
    )  # fmt: skip


def _rows(pixels: Tensor, several: bool) -> tuple[Tensor, ...]:
    """Return the inputs of a batch one by one, or the only one."""
    return tuple(pixels) if several else (pixels,)


GAUSS_NEWTON = "Gauss–Newton"


@dataclass(frozen=True)
class SolveSettings:
    """How long an audit solves for an image before it matches gradients.

    Attributes:
        part: the part of the time that solving may take; matching has the rest.
        restarts: from how many further starts it is tried.
        method: how the equations are solved.
    """

    part: float = 0.6
    restarts: int = 2
    method: GaussNewton = field(default_factory=GaussNewton)


SOLVING = SolveSettings()


def search_input(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Solve for the input of a smooth network; match gradients if that proves nothing.

    The inputs of a batch are searched for together. How Gauss–Newton ended is among the attempts of
    the finding.

    Args:
        subject: the model made ready, with a shape of its inputs.
        share: what was sent.
        recovery: what was recovered from it.
        options: how long to search, and how pixels became inputs.
    """
    began = time.perf_counter()
    found, ending = _solved(subject, share, recovery, options)
    if (
        found is not None
        and found.proved
        and (proved := _solution_described(found, recovery, options))
    ):
        shown = Attempt(GAUSS_NEWTON, Outcome.of(proved.leaked), proved.message)
        return replace(proved, attempts=(shown,))
    left = max(options.seconds - (time.perf_counter() - began), 0.0)
    if options.seconds > 0:
        left = max(left, (1 - SOLVING.part) * options.seconds)
    matched = match_input(subject, share, recovery, replace(options, seconds=left))
    if matched is None:
        return None
    message = matched.message
    if ending.outcome is not Outcome.NOT_APPLICABLE:
        message = f"{message}; Gauss–Newton proved no image: {ending.why}"
    certificate = None if found is None else found.certificate
    return replace(matched, message=message, certificate=certificate, attempts=(ending,))


def _solved(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> tuple[Reconstruction | None, Attempt]:
    """Return what Gauss–Newton found, if it was tried, and how it ended."""
    try:
        if why := _inapplicable(subject, recovery, options):
            return None, Attempt(GAUSS_NEWTON, Outcome.NOT_APPLICABLE, why)
        matching = Matching(
            optimiser=SOLVING.method,
            restarts=SOLVING.restarts,
            seconds=SOLVING.part * options.seconds,
        )
        shaped = replace(subject, said_shape=subject.input_shape)
        (found,) = matching(shaped, [share], [recovery])
    except Exception as error:  # the model's own code and torch may raise anything
        why = f"it could not be carried out: {in_a_line(error)}"
        return None, Attempt(GAUSS_NEWTON, Outcome.NOT_CARRIED_OUT, why)
    return found, Attempt(GAUSS_NEWTON, Outcome.of(found.proved), found.message)


def _inapplicable(subject: Subject, recovery: Recovery | BatchRecovery, options: Options) -> str:
    """Return why Gauss–Newton does not apply, or nothing if it does."""
    shape, method = subject.input_shape, SOLVING.method
    if options.seconds <= 0:
        return "no time was given to search for inputs"
    if not isinstance(shape, tuple):
        return "the shape of an input is not known"
    inputs = recovery.size if isinstance(recovery, BatchRecovery) else 1
    if (unknowns := inputs * math.prod(shape)) > method.dense:
        return f"{unknowns} unknown numbers are too many; an audit solves for {method.dense}"
    return method.roughness(subject, shape)


def _solution_described(
    found: Reconstruction, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Return an image as a finding, with the PSNR that its certificate predicts, if it has both."""
    if found.input is None or found.certificate is None:
        return None
    to_pixels = PixelMap.of(found.input, options.normalisation)
    several, pixels = isinstance(recovery, BatchRecovery), to_pixels(found.input)
    message = (
        "the equations of all layers determine every pixel, and "
        f"{'these images fulfil' if several else 'this image fulfils'} them to within rounding"
    )
    return InputFinding(
        Method.SOLVING,
        message,
        pixels[0] if several else pixels,
        found.certificate.psnr_predicted(to_pixels.scale),
        determined=True,
        to_pixels=to_pixels,
        misfit=found.misfit,
        certificate=found.certificate,
        batch=tuple(pixels) if several else (),
    )


FAILED_TO_RUN = "could not be carried out"
# An attack answers None if it does not apply and nobody needs to hear of it.
InputAttack = Callable[[Subject, GradientShare, Recovery, Options], InputFinding | None]
INPUT_ATTACKS: list[tuple[str, InputAttack]] = [
    ("reading embeddings", invert_embedded),
    ("inversion", invert_input),
    ("matching", search_input),
]


def recover_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding:
    """Return the input by the strongest attack that succeeds, or the best that was found.

    Whatever goes wrong in an attack, in the model's own code or in torch, ends that attack with a
    reason and nothing else. Weight decay is undone first, in every way it may have been applied.
    """
    start = time.perf_counter()
    attacks = INPUT_ATTACKS if recovery.feature is not None else INPUT_ATTACKS[:1]
    if isinstance(subject.input_shape, InputSpec):
        attacks = INPUT_ATTACKS[:1]  # words are not real numbers
    factors = factor(subject.head, [share])
    faint = factors.sums[0] if bool(factors.rank_one) else None  # most products have no decay
    shares = [one.share for one in without_decay(subject, share, faint=faint)] or [share]
    best: InputFinding | None = None
    ended: list[Attempt] = []
    for name, attack in attacks:
        tries = [(_attempted(attack, name, subject, one, recovery, options), one) for one in shares]
        found, share = max(tries, key=lambda pair: _promise(pair[0]))
        ended.append(_ending(name, found))
        if found is not None:
            ended += found.attempts
            best = found if best is None else _better(best, found)
            shares = [share]
        if best is not None and best.leaked:
            break
    if best is None:
        best = InputFinding(Method.NONE, "no feature was recovered to start from")
    noted = {attempt.attack for attempt in ended}
    left = [name for name, _ in INPUT_ATTACKS if name not in noted]
    why = _left_out(subject, recovery, best)
    kept_back = Outcome.NOT_CARRIED_OUT if best.leaked else Outcome.NOT_APPLICABLE
    ended += [Attempt(name, kept_back, why) for name in left]
    return replace(best, seconds=time.perf_counter() - start, attempts=tuple(ended))


def _ending(name: str, found: InputFinding | None) -> Attempt:
    """Return how one attack ended, for the catalogue."""
    if found is None:
        return Attempt(name, Outcome.NOT_APPLICABLE, "the model or the update offers nothing to it")
    if found.method == Method.NONE:
        failed = FAILED_TO_RUN in found.message
        outcome = Outcome.NOT_CARRIED_OUT if failed else Outcome.NOT_APPLICABLE
        return Attempt(name, outcome, found.message)
    return Attempt(name, Outcome.of(found.leaked), found.message)


def _left_out(subject: Subject, recovery: Recovery, best: InputFinding) -> str:
    """Return why the attacks after the last one that was tried were not needed or do not apply."""
    if best.leaked:
        return "a stronger attack had recovered the input already"
    if isinstance(subject.input_shape, InputSpec):
        return "words are not real numbers"
    return "no feature was recovered to start from" if recovery.feature is None else ""


def _promise(found: InputFinding | None) -> tuple[bool, float]:
    return (False, float("-inf")) if found is None else (found.leaked, found.quality)


def _attempted(
    attack: InputAttack,
    name: str,
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    options: Options,
) -> InputFinding | None:
    """Return the outcome of an attack, or in one line why it could not be carried out."""
    try:
        return attack(subject, share, recovery, options)
    except Exception as error:  # the model's own code and torch may raise anything
        return InputFinding(Method.NONE, f"{name} {FAILED_TO_RUN}: {in_a_line(error)}")


def _better(best: InputFinding, found: InputFinding) -> InputFinding:
    """Return the attempt whose image should be better, with a word on the other."""
    why = best.message.partition(";")[0]
    if found.pixels is None:
        return replace(best, message=f"{why}; {found.message}")
    if found.quality >= best.quality:
        return replace(found, message=f"{why}, so {found.message}")
    return replace(best, message=f"{why}; {found.method.value} was tried and is no better")
