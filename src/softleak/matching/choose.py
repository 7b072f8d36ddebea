"""Choose how an input is found: computed, solved for or matched, the surest way first.

An audit and ``reconstruct`` search by the same ``InputSearch``, and so give the same answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn
from typing_extensions import Unpack

from softleak.core.errors import OptionError, in_a_line
from softleak.core.fit import Bearing, Topic
from softleak.core.head import Head
from softleak.core.results import BatchRecovery, Recovery, Status, Told, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import chain_of
from softleak.inversion.invert import walk_back
from softleak.inversion.patches import invert_patches, patch_plan
from softleak.inversion.quotient import divided
from softleak.inversion.results import NoWay, psnr_of
from softleak.matching.gauss_newton.method import GaussNewton
from softleak.matching.optimisers import Adam
from softleak.matching.reconstruct import (
    Matching,
    MatchingSettings,
    expect,
    reconstruct_many,
    subject_of,
    usual_objective,
)
from softleak.matching.reconstruction import Reconstruction, Watch, Way
from softleak.matching.tasks import Image, Noise, Recovered

# Gradients are matched from two starts. If time is limited, the number of steps is fixed
# beforehand, so that the learning rate can fall to its end: short runs tell how long a step takes,
# the first warms up.
MATCHING_STARTS = (Noise(0), Noise(1))
REHEARSALS = (2, 8)  # the steps of the short runs
PLANNED = 0.9  # the part of the time that is planned for
FEWEST_STEPS = 50  # planned at least; the time limit ends them if need be
RESTARTS = 2  # further starts from which equations are solved
SOLVING_PART = 0.6  # of the time that solving for an image may take; matching has the rest


@dataclass(frozen=True, eq=False)
class Searched:
    """What a search for an input found by each of its two ways."""

    solved: Reconstruction | None = None  # by Gauss–Newton, if it was tried
    matched: tuple[Reconstruction, ...] = ()  # from each start, if gradients were matched
    idle: Told | None = None  # why Gauss–Newton does not apply
    failed: Told | None = None  # why it could not be carried out
    near: bool = False  # whether solving began at the best that was matched

    @property
    def settled(self) -> bool:
        """Return whether solving explains the share, so that an error of the input is predicted."""
        return self.solved is not None and self.solved.predicted

    @property
    def ranked(self) -> list[Reconstruction]:
        """Return every answer, the best first, as far as can be told without any truth.

        What explains the share with a predicted error is best; otherwise the least misfit is. What
        explains it without one is one of many, of which matching finds a likelier one.
        """
        told, every = self.solved, sorted(self.matched, key=lambda one: one.misfit)
        if told is not None and self.near:  # it continues the best one, and is not another start's
            every[:1] = [min(told, every[0], key=lambda one: (not one.predicted, one.misfit))]
            return every
        doubtful = told is not None and told.certificate is not None and told.certificate.explained
        if told is not None and (told.predicted or not (doubtful and every)):
            every.append(told)
        return sorted(every, key=lambda one: (not one.predicted, one.misfit))


@dataclass(frozen=True, eq=False)
class InputSearch:
    """Solve for the inputs of a share, and match gradients where that proves nothing."""

    seconds: float | None = None  # the time limit, after which the best so far is returned
    restarts: int = RESTARTS  # further starts from which the equations are solved
    memory: int = 2 << 30  # the bytes that either way may take
    method: GaussNewton = field(default_factory=GaussNewton)  # how the equations are solved
    watch: Watch | None = None  # who may end the search and is told of it

    def __call__(
        self, subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery
    ) -> Searched:
        """Return what each way finds; matching is not tried if solving settles it.

        Where units switch, solving begins at what matching found.
        """
        began, shape = time.perf_counter(), subject.said_shape or share.input_shape
        subject = replace(subject, said_shape=shape or subject.input_shape)
        matched: tuple[Reconstruction, ...] = ()
        try:
            if idle := self._inapplicable(subject, recovery):
                found = Searched(idle=idle)
            elif self.method.switches(subject, subject.expected_tensor_shape):
                matched = self.matched(subject, share, recovery, self._part(1 - SOLVING_PART))
                found = self._solved(subject, share, recovery, matched)
            else:
                found = self._solved(subject, share, recovery, ())
        except Exception as error:  # the model's own code and torch may raise anything
            found = Searched(failed=because(Why.NOT_RUN, name="it", error=in_a_line(error)))
        if found.settled or matched or subject.said_shape is None or self.seconds == 0:
            return replace(found, matched=matched)
        left = None
        if self.seconds is not None:
            spent = time.perf_counter() - began
            left = max(self.seconds - spent, (1 - SOLVING_PART) * self.seconds)
        return replace(found, matched=self.matched(subject, share, recovery, left))

    def _part(self, part: float) -> float | None:
        return None if self.seconds is None else part * self.seconds

    def _solved(
        self, subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery,
        matched: Sequence[Reconstruction],
    ) -> Searched:  # fmt: skip
        """Return what Gauss–Newton finds, from the best image that was matched if there is one."""
        best = min(matched, key=lambda one: one.misfit, default=None)
        near = None if best is None or best.input is None else Image(best.input.detach())
        matching = Matching(
            optimiser=replace(self.method, memory=self.memory), start=near or Noise(),
            restarts=0 if near else self.restarts, seconds=self._part(SOLVING_PART),
        )  # fmt: skip
        (found,) = matching(subject, [share], [recovery], watch=self.watch)
        return Searched(replace(found, way=Way.SOLVING), near=near is not None)

    def _inapplicable(self, subject: Subject, recovery: Recovery | BatchRecovery) -> Told | None:
        """Return why Gauss–Newton does not apply; None if it does."""
        shape, most = subject.said_shape, self.method.dense
        if self.seconds is not None and self.seconds <= 0:
            return because(Why.NO_TIME)
        if not isinstance(shape, tuple):
            return because(Why.NO_SHAPE)
        inputs = recovery.size if isinstance(recovery, BatchRecovery) else 1
        if (unknowns := inputs * math.prod(shape)) > most:
            return because(Why.TOO_MANY_UNKNOWNS, unknowns=unknowns, most=most)
        return self.method.roughness(subject, shape) or None

    def matched(
        self, subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery,
        seconds: float | None,
    ) -> tuple[Reconstruction, ...]:  # fmt: skip
        """Match gradients from each start, with as many steps as the time allows."""
        count, objective = len(MATCHING_STARTS), usual_objective(recovery)

        def run(steps: int, left: float | None) -> tuple[Reconstruction, ...]:
            matching = Matching(
                objective=objective, start=MATCHING_STARTS, optimiser=Adam(steps=steps),
                seconds=left, memory=self.memory,
            )  # fmt: skip
            found = matching(subject, [share] * count, [recovery] * count, watch=self.watch)
            return tuple(replace(one, way=Way.MATCHING) for one in found)

        if seconds is None:
            return run(Adam().steps, None)
        begin = last = time.perf_counter()
        for steps in REHEARSALS:
            last = time.perf_counter()
            run(steps, seconds)
        now = time.perf_counter()
        left = max(seconds - (now - begin), 0.0)
        possible = int(PLANNED * left / (now - last) * REHEARSALS[-1])
        return run(min(Adam().steps, max(FEWEST_STEPS, possible)), left)


RECOGNISABLE = 20.0  # dB: a computed input predicted to be as good as this needs no search


def _computed(
    subject: Subject, share: GradientShare, recovery: Recovery
) -> Iterator[tuple[Way, Tensor, Tensor]]:
    """Yield the inputs that need no search, each with the standard error of its entries."""
    quotient = divided(subject, share.expecting(recovery.noise or 0.0), recovery)
    trained = recovery.fit[Topic.MODE].bearing is Bearing.CONTRADICTED
    if quotient is not None and quotient.verified and not trained:
        yield Way.DIVISION, quotient.input, quotient.error
    plan, chain = subject.once(patch_plan), subject.once(chain_of)
    if not isinstance(plan, NoWay) and {plan.weight, plan.positions} <= share.keys():
        found = invert_patches(plan, share)
        yield Way.PATCHES, found.input, found.error
    if not isinstance(chain, NoWay) and recovery.feature is not None:
        found = walk_back(subject.model, share, recovery, chain=chain)
        if found.determined:
            yield Way.WALK, found.input, found.error


def _worth(found: tuple[Way, Tensor, Tensor]) -> float:
    """Return the PSNR in dB that errors predict, with the input's own range as the peak."""
    wide = (found[1].max() - found[1].min()).double().clamp_min(1e-12)
    told = psnr_of(found[2].double(), 1 / wide)
    return told if math.isfinite(told) else -math.inf


def computed(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery
) -> Reconstruction | None:
    """Return the best input that needs no search, if it is predicted to be recognisable."""
    if not isinstance(recovery, Recovery) or recovery.label is None:
        return None
    try:
        best = max(_computed(subject, share, recovery), key=_worth, default=None)
    except Exception:  # the model's own code and torch may raise anything
        return None
    if best is None or _worth(best) < RECOGNISABLE:
        return None
    way, x, error = best
    start = Image(x.detach().to(next(iter(subject.parameters.values()))))
    (found,) = Matching(start=start, optimiser=Adam(steps=1))(subject, [share], [recovery])
    return None if found.input is None else replace(found, input=x, error=error, way=way)


OF_EVERY_WAY = frozenset(("seconds", "restarts", "memory"))  # settings that leave the way open


def reconstruct(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovered = None,
    *,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
    watch: Watch | None = None,
    **settings: Unpack[MatchingSettings],
) -> Reconstruction:
    """Search for the input behind a share by the strongest attack that applies.

    Inputs that can be computed are: by one division, from gradients of embeddings, or layer by
    layer. Otherwise the equations of all layers are solved by Gauss–Newton, and gradients are
    matched (§4.3) where that explains nothing. ``way`` says which it was, as in an audit. With a
    setting that belongs to matching alone, gradients are matched.

    With a ``BatchRecovery``, all inputs of the batch are searched together. Each has its own label
    and feature as targets; those of samples that were not found are free. The objective is then
    ``Cosine(beta=2.0)`` by default, since features count only with a positive ``beta``.

    Args:
        model: the classifier, in the mode the client used. Nothing of it is changed.
        share: what one client sent.
        recovery: what ``recover_label`` or ``recover_batch`` found; without it, ``label`` must name
            another source.
        head: the last linear layer or its name, if it is not to be found.
        input_shape: the shape of one input; by default the one that the share says.
        watch: a handle to end the search early or to show its progress.
        **settings: the fields of ``softleak.matching.Matching``, such as ``objective=sl.L2()``,
            ``restarts=2`` or ``seconds=60``.

    Returns:
        The input, the label it was found with, and how the search ended; of a batch, the inputs
        (B, …) and labels (B, C). A share that cannot be matched has a status that says why, and no
        input.

    Raises:
        ModelError: if the model cannot be matched at all.
        OptionError: if a setting is not of the kind it should be.
    """
    if not isinstance(share, GradientShare) and isinstance(share, (list, tuple)):
        raise OptionError(
            f"expected one GradientShare, got a {type(share).__name__} of {len(share)}; use "
            "reconstruct_many(model, shares, recoveries) for several shares"
        )
    expect(share, GradientShare, "a GradientShare")
    if settings.keys() <= OF_EVERY_WAY and recovery is not None:
        asked = Matching(**settings)
        search = InputSearch(asked.seconds, asked.restarts or RESTARTS, asked.memory, watch=watch)
        return strongest(subject_of(model, [share], head, input_shape), share, recovery, search)
    settings.setdefault("objective", usual_objective(recovery))
    (found,) = reconstruct_many(
        model, [share], [recovery], head=head, input_shape=input_shape, watch=watch, **settings
    )
    return found


def strongest(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, search: InputSearch
) -> Reconstruction:
    """Return the input that is computed, or else the best that a search finds, and how it ended."""
    if (found := computed(subject, share, recovery)) is not None:
        return found
    searched = search(subject, share, recovery)
    best, *_ = [*searched.ranked, Reconstruction(Status.NO_LABEL)]
    beside = searched.idle or searched.failed
    if beside is None and best.way is Way.MATCHING and searched.solved is not None:
        beside = searched.solved.message
    return replace(best, beside=beside)
