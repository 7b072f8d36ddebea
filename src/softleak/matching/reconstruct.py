"""The attack: ``Matching``, the batches that it runs, and the functions that call it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import Unpack

from softleak.core.errors import ModelError, OptionError, in_a_line
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.results import BatchRecovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.equations import BatchKnowledge
from softleak.matching.gauss_newton.method import (
    GaussNewton,
    NewtonSolution,
    described,
    solve_from_starts,
)
from softleak.matching.optimisers import (
    LBFGS,
    MOST_RESTARTS,
    Adam,
    Minimum,
    Optimiser,
    minimise_attempts,
)
from softleak.matching.problems import (
    L2,
    Cosine,
    DifferentiableModel,
    MatchingProblems,
    Objective,
    OuterProducts,
    Prior,
    TotalVariation,
    count_activations,
    factored,
)
from softleak.matching.reconstruction import Reconstruction, Stopping, Watch
from softleak.matching.tasks import (
    Image,
    Job,
    LabelSource,
    Noise,
    Recovered,
    RecoveredLabel,
    Start,
    job_of,
    targets,
)

CONTRAST = 0.05  # of the noise that a search begins with; small noise is nearly grey
NEAR_ATTEMPTS = 3  # how many attempts differ in how their steps are damped, not only in their start


@dataclass(frozen=True, eq=False)
class Prover:
    """Solve jobs by Gauss–Newton, one after the other."""

    method: GaussNewton  # how the equations are solved
    subject: Subject  # the model made ready
    attempts: int  # at each job, until one explains the share; three begin at a near start
    stopping: Stopping  # what may end the run

    def run(self, job: Job, knowledge: Iterable[BatchKnowledge] | None = None) -> Reconstruction:
        """Return the best solution over all starts and all that may be known of the sample."""
        found: list[NewtonSolution] = []
        try:
            for known in knowledge_of(job) if knowledge is None else knowledge:
                starts = [self._drawn(job, attempt) for attempt in range(self.attempts)]
                found.append(
                    solve_from_starts(
                        self.method, self.subject, job.share, known, starts, self.stopping,
                        job.start.near,
                    )
                )  # fmt: skip
        except (ModelError, RuntimeError, NotImplementedError) as error:
            if not found:
                return Reconstruction(Status.UNFIT, reason=in_a_line(error))
        best = min(found, key=lambda one: one.misfit)
        rivals = [one for one in found if one is not best and one.explained]
        answer = self._answer(best, job)
        if answer.predicted and any(_apart(one, best) for one in rivals):
            reason = "another label explains the share as well, with another image"
            return replace(answer, status=Status.CONVERGED, reason=reason, certificate=None)
        return answer

    def polish(self, job: Job, matched: Reconstruction) -> Reconstruction:
        """Return the solution near a matched input if it is proved, else the matched input."""
        if matched.input is None or math.prod(job.shape) > self.method.dense:
            return matched
        try:
            if self.method.roughness(self.subject, job.shape):
                return matched
        except Exception:  # the model's own code and torch may raise anything
            return matched
        near = replace(job, start=Image(matched.input.detach()))
        found = self.run(near)
        if found.proved:
            return replace(found, evaluations=matched.evaluations + found.evaluations)
        return replace(matched, certificate=found.certificate)

    def _drawn(self, job: Job, attempt: int) -> Tensor:
        """Return inputs (B, …) to begin with, of little contrast unless the start is near."""
        near = job.start.near and attempt < NEAR_ATTEMPTS
        drawn = job.start.draw(job.shape, 0 if near else attempt).double()
        start = drawn if near else drawn * CONTRAST
        return start if job.batch else start[None]

    def _answer(self, found: NewtonSolution, job: Job) -> Reconstruction:
        answer = described(found, self.stopping)
        if job.batch:
            return answer
        told = (answer.input, answer.label, answer.error)
        x, y, error = (None if one is None else one[0] for one in told)
        return replace(answer, input=x, label=y, error=error)


def _apart(one: NewtonSolution, other: NewtonSolution) -> bool:
    """Return whether two solutions are more than their errors apart."""
    error = other.certificate.error
    return error is None or bool(((one.inputs - other.inputs).abs() > 10 * error).any())


def knowledge_of(job: Job) -> Iterator[BatchKnowledge]:
    """Yield what may be known of the sample: one label, or each of an ambiguous recovery."""
    recovery = job.recovery
    if job.batch or isinstance(recovery, BatchRecovery):
        yield _known_batch(job)
        return
    if job.label.free:
        yield BatchKnowledge(job.label.value.softmax(0)[None], math.inf)
        return
    label = job.label.value.double()
    if recovery is None or recovery.label is None or not _same(label, recovery.label):
        yield BatchKnowledge(label[None])
    elif recovery.status is Status.UNIQUE:
        feature = None if recovery.feature is None else recovery.feature[None]
        error = recovery.error if math.isfinite(recovery.error) else math.inf
        yield BatchKnowledge(label[None], error, feature, recovery.feature_error)
    else:
        labels = [label] + [one.label.double() for one in recovery.solutions]
        for i, one in enumerate(labels):
            if not any(_same(one, before) for before in labels[:i]):
                yield BatchKnowledge(one[None], math.inf)


def _known_batch(job: Job) -> BatchKnowledge:
    """Return what is known of a batch; its labels are solved for unless all of them are proved."""
    labels = torch.where(job.label.freed[:, None], job.label.value.softmax(-1), job.label.value)
    found = job.recovery.samples if isinstance(job.recovery, BatchRecovery) else ()
    proved = [one for one in found if one.status is Status.UNIQUE and one.feature is not None]
    if len(proved) < len(labels) or job.label.freed.any():
        given = not found and not job.label.freed.any()
        return BatchKnowledge(labels, 0.0 if given else math.inf)
    features = torch.stack([one.feature for one in proved if one.feature is not None])
    error = max(one.error for one in proved)
    return BatchKnowledge(labels, error, features, max(one.feature_error for one in proved))


def _same(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape
    return alike and torch.allclose(one.double(), other.double(), atol=1e-6)


# What double backpropagation holds of a problem, measured on LeNet, ResNet18, VGG and ViT: copies
# of all layers' outputs, and of the model's parameters.
ACTIVATION_COPIES, PARAMETER_COPIES = 12, 6
MOST_PROBLEMS = 64  # the largest batch; beyond it a batch is not faster


def entries(model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser) -> int:
    """Return how many numbers one problem holds in memory."""
    A = count_activations(model, model.like.new_zeros(1, *input_shape))
    weights = sum(p.numel() for p in model.parameters.values())
    n = math.prod(input_shape) + model.head.classes
    return ACTIVATION_COPIES * A + PARAMETER_COPIES * weights + optimiser.vectors * n


def batch_size(
    model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser, memory: int
) -> int:
    """Return how many problems fit in ``memory`` bytes, at least one."""
    size = entries(model, input_shape, optimiser) * model.like.element_size()
    return max(1, min(MOST_PROBLEMS, memory // size))


IMAGE_DIMENSIONS = 3  # (C, H, W)
ROUNDINGS = 16.0  # a misfit, or a gain, below so many roundings of the dtype is none


@dataclass(frozen=True, eq=False)
class BatchMatcher:
    """Everything that the batches of one run have in common."""

    matching: Matching  # the settings of the run
    model: DifferentiableModel  # the function from input and label to gradient
    stopping: Stopping  # what may end the run

    def run(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Return the reconstructions of jobs of one kind, as many at once as memory allows."""
        try:
            room = self.matching.memory // math.prod(jobs[0].batch)
            shape, optimiser = jobs[0].sample_shape, self.matching.used_optimiser
            fit = batch_size(self.model, shape, optimiser, room)
        except ModelError as error:  # the shares say a shape that the model does not take
            return [Reconstruction(Status.UNFIT, reason=str(error)) for _ in jobs]
        size = max(1, fit // (self.matching.restarts + 1))
        parts = (jobs[i : i + size] for i in range(0, len(jobs), size))
        return [found for part in parts for found in self._batch(part)]

    def _batch(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Return the reconstructions of jobs that fit in memory together."""
        problems = self._problems(jobs)
        found = self._begun(problems, jobs) if jobs[0].start.near else {}
        # A start that leaves nothing to explain is kept: going on could only fit rounding.
        rows = [
            i for i, job in enumerate(jobs)
            if i not in found or not found[i].misfit < self._unexplained(job)
        ]  # fmt: skip
        if rows:
            chosen = problems.select(torch.tensor(rows, device=problems.targets.label.device))
            some = [jobs[i] for i in rows]
            attempts = range(self.matching.restarts + 1)
            starts = [_starts(chosen, some, attempt) for attempt in attempts]
            minimum = minimise_attempts(self.matching.used_optimiser, chosen, starts, self.stopping)
            for i, result in zip(rows, _results(chosen, minimum), strict=True):
                found[i] = self._better(found.get(i), result, jobs[i])
        return [found[i] for i in range(len(jobs))]

    def _problems(self, jobs: Sequence[Job]) -> MatchingProblems:
        """Return the jobs as rows of one function."""
        names = tuple(name for name in self.model.parameters if name in jobs[0].share)
        # Images are smooth; from a start that is near already a prior only harms.
        smooth = len(jobs[0].sample_shape) == IMAGE_DIMENSIONS and not jobs[0].start.near
        usual = (TotalVariation(),) if smooth else ()
        given = self.matching
        outer, factors = self._outer(jobs)
        return MatchingProblems(
            self.model, names, given.objective, usual if given.priors is None else given.priors,
            jobs[0].shape, targets(jobs, names, self.model, factors), given.compiled, outer,
        )  # fmt: skip

    def _outer(self, jobs: Sequence[Job]) -> tuple[OuterProducts | None, dict[str, Tensor]]:
        """Return the layers whose gradients are outer products, and the factors of those sent."""
        objective = self.matching.objective
        unfit = bool(jobs[0].batch) or bool(objective.beta) or self.matching.compiled
        if unfit or type(objective) not in (L2, Cosine):
            return None, {}
        able = OuterProducts.of(self.model, jobs[0].shape)
        factors = {
            weight: rows
            for weight in sorted(able.weights & jobs[0].share.keys())
            if (rows := factored([job.share[weight] for job in jobs])) is not None
        }
        layers = tuple(name for name in able.layers if f"{name}.weight" in factors)
        return (replace(able, layers=layers) if layers else None), factors

    def _begun(self, problems: MatchingProblems, jobs: Sequence[Job]) -> dict[int, Reconstruction]:
        start = _starts(problems, jobs, 0)
        losses, _ = replace(problems, compiled=False).evaluator()(start)
        told = zip(jobs, problems.labels(start), losses, problems.misfits(start), strict=True)
        return {
            i: Reconstruction(
                Status.EXPLAINED, job.start.draw(job.shape, 0), label, _finite(loss),
                _finite(misfit), evaluations=1,
            )
            for i, (job, label, loss, misfit) in enumerate(told)
        }  # fmt: skip

    def _unexplained(self, job: Job) -> float:
        """Return the misfit that rounding, or noise the share is known to carry, may cause."""
        eps = torch.finfo(self.model.like.dtype).eps
        return max(ROUNDINGS * eps, job.noise)

    def _better(
        self, start: Reconstruction | None, result: Reconstruction, job: Job
    ) -> Reconstruction:
        """Return the result, or the start if the result gained no more on it than rounding may."""
        if start is None or result.misfit < start.misfit - self._unexplained(job):
            return result
        return replace(start, status=result.status, evaluations=result.evaluations)


def _starts(problems: MatchingProblems, jobs: Sequence[Job], attempt: int) -> Tensor:
    """Return the unknowns (P, n) that an attempt begins with."""
    like = problems.targets.label
    inputs = torch.stack([job.start.draw(job.shape, attempt).to(like) for job in jobs])
    logits = torch.stack([job.label.logits.to(like) for job in jobs])
    return problems.pack(inputs, logits)


def _results(problems: MatchingProblems, minimum: Minimum) -> list[Reconstruction]:
    labels = problems.labels(minimum.unknowns)
    inputs, missed = problems.inputs(minimum.unknowns), problems.misfits(minimum.unknowns)
    return [
        Reconstruction(
            status, inputs[i], labels[i],
            _finite(minimum.loss[i]), _finite(missed[i]), int(minimum.evaluations[i]),
        )
        for i, status in enumerate(minimum.statuses)
    ]  # fmt: skip


def _finite(value: Tensor | float) -> float:
    return float(value) if math.isfinite(value) else math.inf


Each = TypeVar("Each")


def expect(given: object, kind: type, example: str) -> None:
    """Raise ``OptionError`` unless something is an instance of a kind, and not a class."""
    if isinstance(given, type):
        raise OptionError(f"expected {example}, got the class {given.__name__}")
    if not isinstance(given, kind):
        raise OptionError(f"expected {example}, got {type(given).__name__}")


def one_each(given: Each | Sequence[Each], count: int, what: str) -> list[Each]:
    """Return one for every share, from one for all or a sequence of as many."""
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise OptionError(
            f"expected one {what} for all or one for each of {count} shares, got {len(given)}"
        )
    return list(given)


def listed(given: object) -> Sequence[object]:
    """Return a sequence as it is, and anything else as a sequence of one."""
    return given if isinstance(given, Sequence) else [given]


POLISHES = 2  # attempts of a polish: a brisk one, and a cautious one if that gets stuck


def usual_objective(recovery: Recovered) -> Cosine:
    """Return the default objective. Samples of a batch are told apart by their features."""
    return Cosine(beta=2.0) if isinstance(recovery, BatchRecovery) else Cosine()


class MatchingSettings(TypedDict, total=False):
    """The fields of ``Matching``, as ``reconstruct`` takes them by keyword."""

    objective: Objective
    optimiser: Optimiser | GaussNewton | None
    priors: Sequence[Prior] | None
    label: LabelSource | Sequence[LabelSource]
    start: Start | Sequence[Start]
    restarts: int
    seconds: float | None
    memory: int
    dtype: torch.dtype | None
    compiled: bool
    polish: GaussNewton | None


@dataclass(frozen=True)
class Matching:
    """Search for inputs whose gradients come nearest to those that were shared (§4.3, Eq. 8).

    All shares, attempts and label sources run as rows of one batch.

    Attributes:
        objective: the distance between gradients, ``Cosine()`` or ``L2()``.
        optimiser: the way to minimise it. None means the paper's for the objective: ``Adam()`` for
            the cosine, ``LBFGS()`` otherwise. ``GaussNewton()`` solves for the inputs of a smooth
            network and proves them; it has no use for an objective or for priors.
        polish: how inputs that were matched are solved for at the end. An input is replaced only
            by one that is proved. None leaves them as they are.
        priors: penalties of the input. None means total variation for images, and no penalty from
            a start that is near or for other inputs.
        label: where the label comes from, one source for all shares or one for each.
        start: where the input begins, one start for all shares or one for each.
        restarts: how many further attempts are made; all attempts share the evaluations of one.
        seconds: the time after which the best inputs so far are returned; None means no limit.
        memory: how many bytes one batch may take.
        dtype: the dtype to compute in; None means that of the model.
        compiled: whether evaluations are compiled, which is faster and rounds differently.

    Example:
        >>> from softleak.matching import L2, Matching
        >>> Matching(objective=L2(), restarts=2).restarts
        2
    """

    objective: Objective = field(default_factory=Cosine)
    optimiser: Optimiser | GaussNewton | None = None
    priors: Sequence[Prior] | None = None
    label: LabelSource | Sequence[LabelSource] = field(default_factory=RecoveredLabel)
    start: Start | Sequence[Start] = field(default_factory=Noise)
    restarts: int = 0
    seconds: float | None = None
    memory: int = 2 << 30
    dtype: torch.dtype | None = None
    compiled: bool = False
    polish: GaussNewton | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.restarts <= MOST_RESTARTS:
            raise OptionError(f"expected 0 to {MOST_RESTARTS} restarts, got {self.restarts}")
        expect(self.objective, Objective, "an objective such as L2()")
        if self.optimiser is not None and not isinstance(self.optimiser, GaussNewton):
            expect(self.optimiser, Optimiser, "an optimiser such as Adam() or LBFGS()")
        if self.polish is not None:
            expect(self.polish, GaussNewton, "GaussNewton() or None")
        for label in listed(self.label):
            expect(label, LabelSource, "a label source such as RecoveredLabel() or GivenLabel(y)")
        for start in listed(self.start):
            expect(start, Start, "a start such as Noise() or Image(x)")

    @property
    def used_optimiser(self) -> Optimiser:
        """The optimiser that was given, or the paper's for the objective."""
        given = None if isinstance(self.optimiser, GaussNewton) else self.optimiser
        return given or (Adam() if isinstance(self.objective, Cosine) else LBFGS())

    def __call__(
        self, subject: Subject, shares: Sequence[GradientShare],
        recoveries: Sequence[Recovered] | None = None,
        *, watch: Watch | None = None,
    ) -> tuple[Reconstruction, ...]:  # fmt: skip
        """Reconstruct the input of every share, in order, as ``reconstruct_many`` does.

        The subject's ``said_shape`` counts for all shares; without one, each share's own counts.
        """
        count = len(shares)
        known = [None] * count if recoveries is None else recoveries
        expect(known, Sequence, "a sequence of recoveries")
        if len(known) != count:
            raise OptionError(f"expected one recovery per share ({count}), got {len(known)}")
        labels = one_each(self.label, count, "label source")
        starts = one_each(self.start, count, "start")
        asked = zip(shares, known, labels, starts, strict=True)
        jobs = [job_of(subject, self.objective, *each) for each in asked]
        # Fused attention kernels cannot be differentiated twice; the plain one can.
        with sdpa_kernel(SDPBackend.MATH):
            return self._matched(subject, jobs, watch)

    def _matched(
        self, subject: Subject, jobs: Sequence[Job | Reconstruction], watch: Watch | None
    ) -> tuple[Reconstruction, ...]:
        """Return the answers in order; jobs of one kind run in one batch."""
        found = {i: job for i, job in enumerate(jobs) if isinstance(job, Reconstruction)}
        kinds: dict[object, dict[int, Job]] = {}
        for i, job in enumerate(jobs):
            if isinstance(job, Job):
                kinds.setdefault(job.kind, {})[i] = job
        if isinstance(self.optimiser, GaussNewton):
            prover = self._prover(self.optimiser, subject, self.restarts + 1, watch)
            for i, job in ((i, job) for kind in kinds.values() for i, job in kind.items()):
                found[i] = prover.run(job)
        elif kinds:
            evaluations = self.used_optimiser.evaluations * (len(jobs) - len(found))
            dtype = self.dtype or next(iter(subject.parameters.values())).dtype
            model = DifferentiableModel.of(subject.model, subject.head, dtype)
            matcher = BatchMatcher(self, model, Stopping(evaluations, self.seconds, watch))
            for batch in kinds.values():
                found |= dict(zip(batch, matcher.run(list(batch.values())), strict=True))
                if self.polish is not None:
                    prover = self._prover(self.polish, subject, POLISHES, watch)
                    found |= {i: prover.polish(job, found[i]) for i, job in batch.items()}
        return tuple(found[i] for i in range(len(jobs)))

    def _prover(
        self, method: GaussNewton, subject: Subject, attempts: int, watch: Watch | None
    ) -> Prover:
        """Return what solves jobs by Gauss–Newton, within its own time or that of the run."""
        limits = [limit for limit in (self.seconds, method.seconds) if limit is not None]
        stopping = Stopping(method.evaluations * attempts, min(limits, default=None), watch)
        return Prover(method, subject, attempts, stopping)


def reconstruct_many(
    model: nn.Module,
    shares: Sequence[GradientShare],
    recoveries: Sequence[Recovered] | None = None,
    *,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
    watch: Watch | None = None,
    **settings: Unpack[MatchingSettings],
) -> tuple[Reconstruction, ...]:
    """Search for the inputs behind many shares of one model, all in one batch.

    Args:
        model, head, input_shape, watch: as ``reconstruct`` takes them.
        shares: what the clients sent.
        recoveries: what ``recover_labels`` or ``recover_batch`` found, one for each share.
        **settings: the fields of ``softleak.matching.Matching``. ``label`` and ``start`` are one
            for all shares or one for each.

    Returns:
        One reconstruction per share, in order. A share that cannot be matched has a status that
        says why, and does not affect the others.
    """
    if isinstance(shares, GradientShare):
        raise OptionError(
            "expected a sequence of shares, got one GradientShare; use "
            "reconstruct(model, share, recovery) for one share"
        )
    matching, shares = Matching(**settings), list(shares)
    for share in shares:
        expect(share, GradientShare, "a GradientShare")
    if not shares:
        return ()
    return matching(subject_of(model, shares, head, input_shape), shares, recoveries, watch=watch)


def subject_of(
    model: nn.Module,
    shares: Sequence[GradientShare],
    head: str | Head | None,
    input_shape: tuple[int, ...] | None,
) -> Subject:
    """Return the model made ready, its head verified on an input of a shape that somebody says."""
    said = {share.input_shape: None for share in shares if share.input_shape}  # in order
    shapes: Sequence[Layout | None] = [input_shape] if input_shape else [*said] or [None]
    for shape in shapes[:-1]:
        try:
            return replace(Subject.of(model, shape, head=head), said_shape=input_shape)
        except ModelError:  # one share may say a shape that the model does not take
            continue
    return replace(Subject.of(model, shapes[-1], head=head), said_shape=input_shape)
