"""``reconstruct``: shares in, inputs out, by matching gradients; all problems in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, overload

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import Unpack

from softleak.errors import OptionError
from softleak.head import Head
from softleak.matching.adam import Adam
from softleak.matching.attempts import MOST, Runner
from softleak.matching.jobs import Asked, Job, one_each
from softleak.matching.label_sources import LabelSource, RecoveredLabel
from softleak.matching.lbfgs import LBFGS
from softleak.matching.minimum import Optimiser
from softleak.matching.network import Network
from softleak.matching.objectives import Cosine, Objective
from softleak.matching.priors import Prior
from softleak.matching.results import MatchStatus, Reconstruction
from softleak.matching.starts import Noise, Start
from softleak.matching.watch import Watch
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.verify import find_head

MEMORY = 2 << 30  # bytes
OURS, NOISE, COSINE = RecoveredLabel(), Noise(), Cosine()


class Options(TypedDict, total=False):
    """What ``reconstruct`` takes by keyword."""

    objective: Objective
    optimiser: Optimiser | None
    priors: Sequence[Prior] | None
    label: LabelSource | Sequence[LabelSource]
    start: Start | Sequence[Start]
    restarts: int
    seconds: float | None
    memory: int
    dtype: torch.dtype | None
    compiled: bool
    progress: bool
    head: str | Head | None
    input_shape: tuple[int, ...] | None


@overload
def reconstruct(
    model: nn.Module,
    shares: GradientShare,
    recoveries: Recovery | None = None,
    **options: Unpack[Options],
) -> Reconstruction: ...


@overload
def reconstruct(
    model: nn.Module,
    shares: Sequence[GradientShare],
    recoveries: Sequence[Recovery | None] | None = None,
    **options: Unpack[Options],
) -> tuple[Reconstruction, ...]: ...


def reconstruct(
    model: nn.Module,
    shares: GradientShare | Sequence[GradientShare],
    recoveries: Recovery | Sequence[Recovery | None] | None = None,
    *,
    objective: Objective = COSINE,
    optimiser: Optimiser | None = None,
    priors: Sequence[Prior] | None = None,
    label: LabelSource | Sequence[LabelSource] = OURS,
    start: Start | Sequence[Start] = NOISE,
    restarts: int = 0,
    seconds: float | None = None,
    memory: int = MEMORY,
    dtype: torch.dtype | None = None,
    compiled: bool = False,
    progress: bool = False,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Reconstruction | tuple[Reconstruction, ...]:
    """The inputs whose gradients come nearest to the shares', of one share or of many at once.

    ``label`` and ``start`` are one for all shares or one for each. Without an ``optimiser`` it is
    the paper's for the objective: Adam for the cosine, else L-BFGS. Without ``priors`` it is total
    variation, and none from a start that is near. After ``seconds``, or on Ctrl-C, the best so far
    is kept.
    """
    if not 0 <= restarts < MOST:
        raise OptionError(f"expected 0 to {MOST - 1} restarts, got {restarts}")
    many = [shares] if isinstance(shares, GradientShare) else list(shares)
    if not many:
        return ()
    parts = (
        one_each(recoveries, len(many), "recovery"),
        one_each(label, len(many), "label source"),
        one_each(start, len(many), "start"),
    )
    _check(many, objective, *parts[1:])
    shape = input_shape or many[0].input_shape
    found = head if isinstance(head, Head) else find_head(model, head, shape)
    asked = Asked(model, found, objective, input_shape)
    jobs = [asked.job(*each) for each in zip(many, *parts, strict=True)]
    way = optimiser or (Adam() if isinstance(objective, Cosine) else LBFGS())
    network = Network.of(model, found, dtype or next(model.parameters()).dtype)
    total = way.evaluations * sum(isinstance(job, Job) for job in jobs)
    # Fused attention kernels cannot be differentiated twice; the plain one can.
    with Watch(total, seconds, progress) as watch, sdpa_kernel(SDPBackend.MATH):
        runner = Runner(network, objective, priors, way, restarts + 1, compiled, memory, watch)
        results = _all(jobs, runner)
    return results[0] if isinstance(shares, GradientShare) else results


def _check(
    shares: Sequence[GradientShare], objective: Objective, labels: Sequence[LabelSource],
    starts: Sequence[Start],
) -> None:  # fmt: skip
    """That everything is of the kind it should be: a class is no object of its own."""
    wanted: list[tuple[Sequence[object], type, str]] = [
        (shares, GradientShare, "a GradientShare"),
        ([objective], Objective, "an objective such as L2()"),
        (labels, LabelSource, "a label source such as RecoveredLabel() or GivenLabel(y)"),
        (starts, Start, "a start such as Noise() or Image(x)"),
    ]
    for given, kind, example in wanted:
        for one in given:
            if isinstance(one, type) or not isinstance(one, kind):
                name = one.__name__ if isinstance(one, type) else type(one).__name__
                raise OptionError(f"expected {example}, got {name}")


def _all(jobs: Sequence[Job | MatchStatus], runner: Runner) -> tuple[Reconstruction, ...]:
    """Those that cannot be matched with their status, the others kind by kind, in their order."""
    found = {i: Reconstruction(job) for i, job in enumerate(jobs) if isinstance(job, MatchStatus)}
    kinds: dict[object, dict[int, Job]] = {}
    for i, job in enumerate(jobs):
        if isinstance(job, Job):
            kinds.setdefault(job.kind, {})[i] = job
    for batch in kinds.values():
        found |= dict(zip(batch, runner.run(list(batch.values())), strict=True))
    return tuple(found[i] for i in range(len(jobs)))
