"""Recover labels and features from shares (§3): evidence first, then the families."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import torch
from torch import nn

from softleak.core.errors import ModelError, OptionError, ShareError, SoftleakError, in_a_line
from softleak.core.factors import factor, head_gradients
from softleak.core.families import Family
from softleak.core.head import Head, with_precision
from softleak.core.input_spec import InputSpec, Layout
from softleak.core.knowledge import Knowledge
from softleak.core.loss import Loss, NextToken, stated_loss
from softleak.core.results import Recovery, Status, Why, because
from softleak.core.share import GradientShare, Scale, alike
from softleak.core.subject import Subject
from softleak.labels.evidence.probes import evidence_for, evidence_of
from softleak.labels.evidence.relation import Relation
from softleak.labels.fit import fitted, loss_beside_softmax, recover_under
from softleak.labels.local.recover import recover_trained
from softleak.labels.otherwise import (
    BROKEN,
    allow_for_decay,
    from_bias_alone,
    is_sign_pattern,
    otherwise,
)
from softleak.labels.solve import solve

BATCH = 1 << 25  # entries of head gradients held at once, in float64
TOLERANCE = Knowledge().tolerance


def recover_label(
    model: nn.Module,
    share: GradientShare,
    *,
    family: Family | None = None,
    evidence: bool | Sequence[Relation] = True,
    scale: Scale | None = None,
    head: str | Head | None = None,
    input_shape: Layout | None = None,
    tolerance: float = TOLERANCE,
    loss: Loss | str | None = None,
) -> Recovery:
    """Recover the soft label and the last-layer feature behind one share.

    The arguments are those of ``recover_labels``, for one share.

    Raises:
        SoftleakError: if the share cannot be read or does not fit the model.
    """
    knowledge = Knowledge(
        family, scale, head_only=evidence is False, tolerance=tolerance, loss=stated_loss(loss)
    )
    subject = make_subject(model, [share], evidence, head, input_shape)
    check_share(subject, share)
    return _recover_checked(subject, [share], knowledge)[0]


def recover_labels(
    model: nn.Module,
    shares: Sequence[GradientShare],
    *,
    family: Family | None = None,
    evidence: bool | Sequence[Relation] = True,
    scale: Scale | None = None,
    head: str | Head | None = None,
    input_shape: Layout | None = None,
    tolerance: float = TOLERANCE,
    loss: Loss | str | None = None,
) -> tuple[Recovery, ...]:
    """Recover the soft labels and features behind many shares of one model, in one pass.

    Args:
        model: the classifier the gradients were computed with, in the same train/eval mode.
        shares: what the clients sent.
        family: what is known of the labels. By default anything, where the share holds evidence;
            else a smoothed mix of at most two classes: one-hot, smoothed and mixed labels are.
        evidence: True to probe the model for evidence, the relations found before by ``probe``,
            or False for the head's weight gradient alone, as in the paper.
        scale: "unknown" if the share may have been multiplied by any positive factor, "known" if
            you state that it was not. By default what each share says of itself; see
            ``GradientShare.scale``.
        head: the name of the last linear layer, if it is not to be found; or a prepared ``Head``.
        input_shape: the shape or specification of one input, if the shares do not say.
        tolerance: labels closer than this in L1 count as one answer.
        loss: what the client minimised: "ce", "bce", "mse" or a ``Loss``. By default the softmax
            cross-entropy, unless the numbers are those of another.

    Returns:
        A recovery for each share, in their order. A share that cannot be read, or does not fit the
        model, is REFUSED; the others are recovered nevertheless.
    """
    shares = list(shares)
    knowledge = Knowledge(
        family, scale, head_only=evidence is False, tolerance=tolerance, loss=stated_loss(loss)
    )
    return recover(make_subject(model, shares, evidence, head, input_shape), shares, knowledge)


def make_subject(
    model: nn.Module,
    shares: Sequence[GradientShare],
    evidence: bool | Sequence[Relation],
    head: str | Head | None,
    input_shape: Layout | None,
) -> Subject:
    """Make a model ready, with the input shape that the caller states or a share records."""
    sizes = input_shape if isinstance(input_shape, tuple | list | torch.Size) else ("not", "sizes")
    whole = all(isinstance(size, int) and size > 0 for size in sizes)
    if not (input_shape is None or isinstance(input_shape, InputSpec) or whole):
        wrong = f"input_shape should be positive sizes such as (3, 32, 32), got {input_shape!r}"
        raise ShareError(wrong)
    told = (getattr(share, "input_shape", None) for share in shares)
    subject = Subject.of(model, input_shape or next(filter(None, told), None), head=head)
    if not isinstance(evidence, bool):
        return subject.given(evidence_of, tuple(evidence))
    if evidence and shares and subject.input_shape is None:
        raise ModelError(
            "could not tell which input the model takes; pass input_shape, such as (3, 32, 32), or "
            "evidence=False to use the head alone"
        )
    return subject


def recover(
    subject: Subject, shares: Sequence[GradientShare], knowledge: Knowledge
) -> tuple[Recovery, ...]:
    """Recover the label and the feature behind each share (§3); an unreadable one is REFUSED."""
    refused = {}
    for i, share in enumerate(shares):
        try:
            check_share(subject, share)
        except SoftleakError as error:
            refused[i] = Recovery(Status.REFUSED, str(error))
    readable = [share for i, share in enumerate(shares) if i not in refused]
    answers = iter(_recover_checked(subject, readable, knowledge))
    return tuple(refused[i] if i in refused else next(answers) for i in range(len(shares)))


def _recover_checked(
    subject: Subject, shares: Sequence[GradientShare], knowledge: Knowledge
) -> list[Recovery]:
    """Recover shares that fit the subject: updates of local training, then the others."""
    stated = knowledge.loss
    if stated is not None and isinstance(stated, NextToken) != subject.head.each_token:
        needed = "answer at every token" if isinstance(stated, NextToken) else "answer once"
        raise OptionError(f"the loss {stated.name!r} needs logits that {needed}; state another")
    if subject.head.each_token:
        known = Recovery(Status.OWN_LABEL, because(Why.NEXT_TOKENS), loss=NextToken())
        return [known] * len(shares)
    trained = [i for i, share in enumerate(shares) if share.made_by is not None]
    updates = _recover_trained(subject, [shares[i] for i in trained], knowledge) if trained else []
    results = dict(zip(trained, updates, strict=True))
    plain = [i for i in range(len(shares)) if i not in results]
    ready = [with_precision(shares[i], subject.head) for i in plain]
    relations = evidence_for(subject, knowledge) if ready else ()
    for places in _batches(subject.head, relations, ready):
        found = _each(
            lambda some: _recover(subject, knowledge.of(some[0]), some),
            [ready[k] for k in places],
            "the arithmetic failed on this share ({}): its numbers are not those of a gradient",
        )
        results.update(zip((plain[k] for k in places), found, strict=True))
    return [results[i] for i in range(len(shares))]


def _recover_trained(
    subject: Subject, shares: Sequence[GradientShare], knowledge: Knowledge
) -> list[Recovery]:
    """Recover updates of local training; what they are as gradients goes the usual way."""
    name = subject.head.weight_name
    found = iter(_each(
        lambda some: recover_trained(
            subject, knowledge, some, lambda gradients: recover(subject, gradients, knowledge)
        ),
        [share for share in shares if name in share],
        "the arithmetic failed ({})",
    ))  # fmt: skip
    words = f"the update lacks {name!r}, without which steps are not undone"
    lacking = Recovery(Status.NO_SOLUTION, words)
    return [next(found) if name in share else lacking for share in shares]


def _each(
    attempt: Callable[[Sequence[GradientShare]], list[Recovery]],
    shares: Sequence[GradientShare],
    words: str,
) -> list[Recovery]:
    """Return what is recovered; if arithmetic fails for one share, the others go alone."""
    try:
        return attempt(shares)
    except (ArithmeticError, BROKEN) as error:
        if len(shares) > 1:
            return [_each(attempt, [share], words)[0] for share in shares]
        return [Recovery(Status.NO_SOLUTION, words.format(in_a_line(error)))]


def check_share(subject: Subject, share: GradientShare) -> None:
    """Raise a ``SoftleakError`` that says what is wrong, if a share does not fit the subject."""
    if not isinstance(share, GradientShare):
        raise ShareError(
            f"expected a GradientShare, got {type(share).__name__}; gradients by name become "
            "one by GradientShare(gradients, input_shape)"
        )
    share.check_finite()
    share.check_shapes(subject.parameters)
    if subject.head.bias_name not in share and not subject.head.each_token:
        head_gradients(subject.head, [share])


def _batches(
    head: Head, evidence: Iterable[Relation], shares: Sequence[GradientShare]
) -> Iterator[list[int]]:
    """Yield indices of shares that hold the same gradients in the same precision, in batches."""

    def key(share: GradientShare) -> Hashable:
        held = tuple(relation.parameter in share for relation in evidence)
        dtype = share[head.weight_name].dtype if head.weight_name in share else None
        return held, dtype, share.scale, share.precision

    most = max(BATCH // head.W.numel(), 1)
    for group in alike(key(share) for share in shares):
        yield from (group[i : i + most] for i in range(0, len(group), most))


def _recover(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare]
) -> list[Recovery]:
    """Recover one batch: shares that are one sample's to within rounding first, then the others."""
    loss = loss_beside_softmax(knowledge, subject.head)
    if loss is not None:
        return [recover_under(subject, knowledge, share, loss) for share in shares]
    if subject.head.weight_name not in shares[0] and subject.head.bias_name in shares[0]:
        return [from_bias_alone(subject, share) for share in shares]
    factors = factor(subject.head, shares)
    product, level = (factors.rank_one & ~factors.zero).tolist(), factors.level.tolist()
    # Signs of δ xᵀ are a product as well, and may add up to zero.
    rows = [
        i for i, share in enumerate(shares)
        if product[i] and not (level[i] and is_sign_pattern(share[subject.head.weight_name]))
    ]  # fmt: skip
    every = torch.arange(len(shares), device=factors.sigma.device)
    solved = solve(subject, knowledge, factors.take(every[rows]), [shares[i] for i in rows])
    answers = {
        i: allow_for_decay(subject, knowledge, shares[i], factors.sums[i], found)
        for i, found in zip(rows, solved, strict=True)
        if factors.balanced(i, found.scalar)
    }
    found = [
        answers.get(i) or otherwise(subject, knowledge, share, factors.take(every[i : i + 1]))
        for i, share in enumerate(shares)
    ]
    return [fitted(subject, knowledge, *one) for one in zip(shares, found, strict=True)]
