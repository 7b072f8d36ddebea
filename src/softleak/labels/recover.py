"""§3 as a whole: shares in, recoveries out. Evidence first, then the families."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial

import torch
from torch import nn

from softleak.errors import LabelError, ShareError
from softleak.factors import factor
from softleak.head import Head
from softleak.labels.evidence.probes import probe
from softleak.labels.evidence.relation import Relation
from softleak.labels.families import Family
from softleak.labels.noisy.features import Typical
from softleak.labels.otherwise import from_bias_alone, otherwise
from softleak.labels.precision import with_precision
from softleak.labels.solve import Problem, solve
from softleak.results import Recovery
from softleak.share import GradientShare, Scale
from softleak.verify import find_head

BATCH = 1 << 25  # entries of head gradients held at once, in float64
TOLERANCE = 1e-3  # labels closer than this in L1 are one answer


def recover_label(
    model: nn.Module,
    share: GradientShare,
    *,
    family: Family | None = None,
    evidence: bool | Sequence[Relation] = True,
    scale: Scale | None = None,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
    tolerance: float = TOLERANCE,
) -> Recovery:
    """The soft label and last-layer feature behind one share; see ``recover_labels``."""
    return recover_labels(
        model, [share], family=family, evidence=evidence, scale=scale, head=head,
        input_shape=input_shape, tolerance=tolerance,
    )[0]  # fmt: skip


def recover_labels(
    model: nn.Module,
    shares: Sequence[GradientShare],
    *,
    family: Family | None = None,
    evidence: bool | Sequence[Relation] = True,
    scale: Scale | None = None,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[Recovery, ...]:
    """The soft labels and features behind many shares of one model, in one vectorised pass.

    Args:
        model: the classifier the gradients were computed with, in the same train/eval mode.
        shares: what the clients sent.
        family: what is known of the labels. By default anything, where the share holds evidence;
            else a smoothed mix of at most two classes: one-hot, smoothed and mixed labels are.
        evidence: True to probe the model for evidence, the relations found before by ``probe``,
            or False for the head's weight gradient alone, as in the paper.
        scale: "unknown" if the share may have been multiplied by any positive factor, "known" if
            you vouch that it was not. By default what each share says of itself; see
            ``GradientShare.scale``.
        head: the name of the last linear layer, if it is not to be found; or a prepared ``Head``.
        input_shape: the shape of one input, if the shares do not say.
        tolerance: labels closer than this in L1 count as one answer.
    """
    if scale not in (None, "known", "unknown"):
        raise ShareError(f'scale should be "known", "unknown" or None, got {scale!r}')
    if not tolerance > 0:
        raise LabelError(f"tolerance should be a positive distance of labels, got {tolerance}")
    if family is not None and (isinstance(family, type) or not isinstance(family, Family)):
        raise LabelError(f"expected a label family such as Smoothed(), got {family!r}")
    shares = list(shares)
    _check(model, shares)
    _check_shape(input_shape)
    shape = input_shape or next((s.input_shape for s in shares if s.input_shape), None)
    head = head if isinstance(head, Head) else find_head(model, head, shape)
    shares = [with_precision(share, head) for share in shares]
    if isinstance(evidence, bool):
        evidence = probe(model, shape, head=head) if evidence and shares else ()
    typical = cache(partial(Typical.of, model, head, shape))
    results: dict[int, Recovery] = {}
    for indices in _alike(head, evidence, shares):
        group = [shares[i] for i in indices]
        problem = Problem(
            head, tuple(evidence), family, scale or group[0].scale, tolerance,
            dict(model.named_parameters()),
        )  # fmt: skip
        results.update(zip(indices, _recover(problem, group, typical), strict=True))
    return tuple(results[i] for i in range(len(shares)))


def _check(model: nn.Module, shares: Sequence[GradientShare]) -> None:
    """Every gradient is finite and has its parameter's shape; layers may be missing."""
    parameters = dict(model.named_parameters())
    for share in shares:
        if not isinstance(share, GradientShare):
            raise ShareError(
                f"expected a GradientShare, got {type(share).__name__}; gradients by name become "
                "one by GradientShare(gradients, input_shape)"
            )
        share.check_finite()
        share.check_shapes(parameters)


def _check_shape(shape: object) -> None:
    if shape is None:
        return
    sizes = shape if isinstance(shape, tuple | list | torch.Size) else ("not", "sizes")
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ShareError(f"input_shape should be positive sizes such as (3, 32, 32), got {shape!r}")


def _alike(
    head: Head, evidence: Iterable[Relation], shares: Sequence[GradientShare]
) -> Iterator[list[int]]:
    """Indices of shares that hold the same gradients in the same precision, a batch at a time."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, share in enumerate(shares):
        held = tuple(relation.parameter in share for relation in evidence)
        dtype = share[head.weight_name].dtype if head.weight_name in share else None
        groups[held, dtype, share.scale, share.precision].append(index)
    most = max(BATCH // head.W.numel(), 1)
    for group in groups.values():
        yield from (group[i : i + most] for i in range(0, len(group), most))


def _recover(
    problem: Problem, shares: Sequence[GradientShare], typical: Callable[[], Typical]
) -> list[Recovery]:
    """One batch: those that are one sample's to within rounding first, then the others."""
    if problem.head.weight_name not in shares[0] and problem.head.bias_name in shares[0]:
        return [from_bias_alone(problem, share) for share in shares]
    factors = factor(problem.head, shares)
    rows = (factors.rank_one & ~factors.zero).nonzero()[:, 0]
    solved = solve(problem, factors.take(rows), [shares[i] for i in rows.tolist()])
    answers = {
        i: found
        for i, found in zip(rows.tolist(), solved, strict=True)
        if factors.balanced(i, found.scalar)
    }
    return [answers.get(i) or otherwise(problem, share, typical) for i, share in enumerate(shares)]
