"""This module reads the labels of recovered inputs, and says what of it all is proved.

Every piece has to hold: the scales explain the bias's gradient, each sample's pattern of active
units is the one that the model gives its recovered input, the labels lie in the simplex, and the
client simulated on the whole batch sends this share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from softleak.batches.client_runs import exact_copy
from softleak.batches.multiplicity import Weighing, weigh
from softleak.batches.prediction_errors import predicted
from softleak.batches.resimulate import Resimulation, resimulate
from softleak.batches.sparse_labels import Differences, differences
from softleak.knowledge import Knowledge
from softleak.results import BatchRecovery, Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class VerdictSettings:
    """These decide when inputs and labels of a batch count as proved.

    Attributes:
        misfit: what a linear fit may leave of its equations, in standard errors of rounding. They
            are estimates; the order of a client's sums is a factor of about 10 (see
            ``SimulationSettings.tolerance``).
        bounds: an error bound is so many standard errors.
        runs: runs with moved inputs, from which the error of predictions is taken.
        seed: their seed.
    """

    misfit: float = 32.0
    bounds: float = 6.0
    runs: int = 3
    seed: int = 0


VERDICT = VerdictSettings()


@dataclass(frozen=True, eq=False)
class Inputs:
    """This holds the gradients ``D`` (B, m) at the first layer's output and the inputs (B, n).

    Attributes:
        layer: the layer's name.
        D: the gradients at its output, sample by sample.
        errors: the standard errors (B, m) of ``D``.
        X: the inputs.
        input_error: the largest standard error of an entry of ``X``.
        misfit: what the scales leave of the bias's gradient, in standard errors.
    """

    layer: str
    D: Tensor
    errors: Tensor
    X: Tensor
    input_error: float
    misfit: float


def judge(
    subject: Subject,
    share: GradientShare,
    knowledge: Knowledge,
    inputs: Inputs,
    size: int | None,
) -> BatchRecovery:
    """Return the labels of recovered inputs with everything that is proved of them."""
    model, x = subject.once(exact_copy), inputs.X.view(-1, *subject.expected_tensor_shape)
    rounding = share.resolution(f"{inputs.layer}.weight", subject.head.dtype)
    parts = differences(model, inputs.layer, x, inputs.D, inputs.errors, rounding)
    off = VERDICT.bounds * parts.errors * parts.misfit.clamp_min(1)[:, None]
    weighing = weigh(parts.p, parts.delta, off.amax(1), size, knowledge.scale == "known")
    labels = weighing.labels(parts.p, parts.delta)
    features, p_error, feature_error = predicted(
        subject, x, inputs.input_error, VERDICT.runs, VERDICT.seed
    )
    # The client's label itself sums to one only up to rounding.
    known = off.sum(1) / weighing.weight + VERDICT.bounds * (p_error + rounding)
    errors = known + weighing.label_errors(parts.delta)
    problems = list(_problems(inputs, parts, labels, known))
    if not problems:
        problems += disagreements(resimulate(subject, share, x, labels))
    proved = [not problems and float(error) < knowledge.tolerance for error in errors]
    samples = tuple(
        Recovery(
            Status.UNIQUE if sure else Status.AMBIGUOUS,
            "One label and one input explain this sample." if sure else "Not proved.",
            label=label,
            feature=feature,
            error=float(error),
            feature_error=VERDICT.bounds * feature_error,
        )
        for label, feature, error, sure in zip(labels, features, errors, proved, strict=True)
    )
    status = Status.UNIQUE if all(proved) else Status.AMBIGUOUS
    message = _message(sum(proved), len(proved), problems, weighing)
    return BatchRecovery(status, message, size or len(x), samples, x, inputs.input_error)


def _problems(inputs: Inputs, parts: Differences, labels: Tensor, errors: Tensor) -> Iterator[str]:
    """Yield what speaks against the samples, as sentences."""
    if not inputs.misfit <= VERDICT.misfit:
        yield (
            f"The scales of the samples leave {inputs.misfit:.3g} standard errors of the bias's "
            "gradient."
        )
    unlike = int((~(parts.misfit <= VERDICT.misfit)).sum())
    if unlike:
        yield (
            f"For {unlike} samples no label gives the gradient that was found at the first "
            "layer: noise, several local steps, or another model."
        )
    outside = int((~(labels.amin(1) >= -errors)).sum())
    if outside:
        yield (
            f"The labels of {outside} samples have negative entries: the share was multiplied by "
            "a factor, or the size of the batch is another."
        )


def disagreements(simulated: Resimulation) -> list[str]:
    """Return what a simulated client that sends something else says against the samples."""
    if simulated.agree:
        return []
    if simulated.problem:
        return [f"The client could not be simulated: {simulated.problem}."]
    worst = simulated.worst
    where = "" if worst is None else f"; the worst is {worst.name}, by {worst.misfit:.3g} roundings"
    return [f"The simulated client does not send this share{where}."]


def _message(proved: int, found: int, problems: list[str], weighing: Weighing) -> str:
    """Return what was found and what it rests on."""
    parts = [f"The inputs of {found} samples follow from the gradient of the first layer."]
    if proved == found:
        parts.append(
            "Every label is proved: the client, simulated on all samples, sends this share in "
            "every layer up to rounding."
        )
    elif problems:
        parts.append("Nothing is proved.")
    else:
        parts.append(f"The labels of {proved} of them are proved.")
    return " ".join([*parts, *problems, *([weighing.why] if weighing.why else [])])
