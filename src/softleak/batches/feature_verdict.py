"""This module says what of recovered features and labels is proved, where no input is known.

The zeros of every feature outnumber what chance allows; no feature is negative; one scale for each
sample explains the whole gradient of the bias before; the labels lie in the simplex; and the fully
connected layers, simulated from what the first of them read, send their gradients of the share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.batch_verdict import disagreements
from softleak.batches.feature_checks import resimulate_tail
from softleak.batches.feature_fit import FeatureFit, FeatureProblem
from softleak.batches.multiplicity import weigh
from softleak.knowledge import Knowledge
from softleak.results import BatchRecovery, Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class FeatureVerdict:
    """These decide when features and labels count as proved.

    Attributes:
        misfit: what the equations may leave, in standard errors of rounding. They are estimates;
            the order of a client's sums is a factor of about 10.
        bounds: an error bound is so many of the largest difference among the runs.
        runs: solutions of equations moved by their own errors.
        seed: their seed.
    """

    misfit: float = 32.0
    bounds: float = 6.0
    runs: int = 4
    seed: int = 0


FEATURE_VERDICT = FeatureVerdict()


def judge_features(
    subject: Subject,
    share: GradientShare,
    knowledge: Knowledge,
    problem: FeatureProblem,
    size: int | None,
) -> BatchRecovery:
    """Return labels and features with what is proved of them."""
    generator = torch.Generator().manual_seed(FEATURE_VERDICT.seed)
    fit = problem.solve()
    moved = [problem.moved(generator).solve() for _ in range(FEATURE_VERDICT.runs)]
    p = _prediction(problem, fit)
    rounding = _rounding(problem, fit)
    off = _largest([(run.delta - fit.delta).abs().amax(1) for run in moved])
    weighing = weigh(p, fit.delta, off, size, knowledge.scale == "known")
    labels = weighing.labels(p, fit.delta)
    others = [weighing.labels(_prediction(problem, run), run.delta) for run in moved]
    known = _largest([(other - labels).abs().sum(1) for other in others]) + rounding
    errors = known + weighing.label_errors(fit.delta)
    size_of = fit.features.norm(dim=1)
    feature_errors = _largest([(m.features - fit.features).norm(dim=1) / size_of for m in moved])
    problems = list(_problems(problem, fit, labels, known))
    if not problems:
        simulated = resimulate_tail(subject, share, problem, fit, labels)
        problems += [] if simulated is None else disagreements(simulated)
    proved = [not problems and float(error) < knowledge.tolerance for error in errors]
    samples = tuple(
        Recovery(
            Status.UNIQUE if sure else Status.AMBIGUOUS,
            "One label and one feature explain this sample." if sure else "Not proved.",
            label=label,
            feature=feature,
            error=float(error),
            feature_error=float(spread),
        )
        for label, feature, error, spread, sure in zip(
            labels, fit.features, errors, feature_errors, proved, strict=True
        )
    )
    status = Status.UNIQUE if all(proved) else Status.AMBIGUOUS
    parts = [f"The features of {len(labels)} samples were found by their zeros."]
    parts.append(f"The labels of {sum(proved)} of them are proved.")
    message = " ".join([*parts, *problems, *([weighing.why] if weighing.why else [])])
    return BatchRecovery(status, message, size or len(labels), samples)


def _largest(differences: list[Tensor]) -> Tensor:
    return FEATURE_VERDICT.bounds * torch.stack(differences).amax(0)


def _prediction(problem: FeatureProblem, fit: FeatureFit) -> Tensor:
    """Return ``softmax(W x + b)`` (B, C) of the features."""
    return (problem.head.logits(fit.features) + problem.head.b).softmax(1)


def _rounding(problem: FeatureProblem, fit: FeatureFit) -> Tensor:
    """Return a bound (B,) of what the client's rounding does to ``p`` and to the label, in L1.

    An error e of every logit moves ``p`` by 2 e at most, and by no more than twice what is not of
    the largest class while that one is e lower and the others are e higher.
    """
    head = problem.head
    terms = fit.features.abs() @ head.W.double().abs().T + head.b.abs()
    e = problem.relative * terms.amax(1, keepdim=True)
    z = head.logits(fit.features) + head.b
    largest = torch.zeros_like(z).scatter_(1, z.argmax(1, keepdim=True), 1.0)
    rest = 1 - ((z + e * (1 - 2 * largest)).softmax(1) * largest).sum(1)
    return (2 * e[:, 0]).minimum(2 * rest) + FEATURE_VERDICT.bounds * problem.relative


def _problems(
    problem: FeatureProblem, fit: FeatureFit, labels: Tensor, errors: Tensor
) -> Iterator[str]:
    """Yield what speaks against the samples, as sentences."""
    allowed = 8 * fit.scales.reciprocal().abs()[:, None] * problem.space.errors
    if bool((fit.features < -allowed).any()) or bool((fit.scales <= 0).any()):
        yield "A feature has negative entries, as no ReLU gives."
    if not fit.misfit <= FEATURE_VERDICT.misfit:
        yield (
            f"The scales leave {fit.misfit:.3g} standard errors of the gradient of the bias before "
            "the head."
        )
    outside = int((~(labels.amin(1) >= -errors)).sum())
    if outside:
        yield (
            f"The labels of {outside} samples have negative entries: the share was multiplied by "
            "a factor, or the size of the batch is another."
        )
