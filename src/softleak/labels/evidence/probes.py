"""Find out which evidence a model offers, by running it on random inputs.

No module names are consulted. A relation is used for a parameter if and only if it gives the true
scalar of probes that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from softleak.core.errors import SoftleakError
from softleak.core.factors import SMALLEST_NORMAL, factor
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.labels.evidence.pointwise import fit_lattice, fit_pointwise
from softleak.labels.evidence.relation import (
    PROBE_TOLERANCE,
    Probe,
    Relation,
    fit_head_bias,
    probe_runs,
)

# How relations are fitted and checked.
PROBE_RUNS = 4  # the number of random inputs that the model is run on
PROBE_FITTED = 2  # how many of the runs coefficients are fitted to; the others check the fit
PROBE_UNCERTAIN = 0.01  # relative: a relation that knows the scalar less well is no evidence
PROBE_SEED = 0  # the seed of the random inputs and labels

# Each function fits relations of one kind to a parameter and the runs of a model, where they apply.
# A relation is a frozen dataclass with a field ``accuracy``. A new kind is a line here.
Fitter = Callable[[str, Head, Sequence[Probe]], Sequence[Relation]]
FITTERS: list[Fitter] = [fit_head_bias, fit_pointwise, fit_lattice]


def probe(
    model: nn.Module,
    input_shape: Layout | None = None,
    *,
    head: str | Head | None = None,
    seed: int = PROBE_SEED,
) -> tuple[Relation, ...]:
    """Return the relations that hold for this model, in its present mode (train or eval).

    Relations are facts of the architecture, so they can be computed once and be passed to
    ``recover_label`` as ``evidence=``.

    Args:
        model: the classifier.
        input_shape: the shape or specification of one input; by default the first usual one that
            it accepts.
        head: the name of its last linear layer, or a ``Head`` that the caller states.
        seed: the seed of the random inputs and labels.

    Returns:
        One relation for each parameter whose gradient determines the scalar ``τ``.

    Raises:
        HeadNotFound: if no linear layer does what the attacks assume.
        ModelError: if it is not known which input the model takes.
    """
    subject = Subject.of(model, input_shape, head=head)
    return _relations(subject, subject.expected_shape, seed)


def evidence_of(subject: Subject) -> tuple[Relation, ...]:
    """Return the relations that hold for a subject; none if its layers cannot be looked at."""
    if subject.input_shape is None:
        return ()
    try:
        return _relations(subject, subject.input_shape, PROBE_SEED)
    except SoftleakError:
        raise
    except Exception:
        # The model's own code may raise anything, and a label can be recovered from the head alone.
        return ()


def evidence_for(subject: Subject, knowledge: Knowledge) -> tuple[Relation, ...]:
    """Return the relations an attack may use; none if it may see the head alone."""
    return () if knowledge.head_only else subject.once(evidence_of)


def _relations(subject: Subject, shape: Layout, seed: int) -> tuple[Relation, ...]:
    """Return the relations that hold for inputs of this shape."""
    head = subject.head
    runs = list(probe_runs(subject.model, head, shape, PROBE_RUNS, seed))
    # Some inputs may leave out a parameter, such as an expert's, which then has no gradient.
    always = [n for n in runs[0].share if all(n in run.share for run in runs)]
    tried = sorted(always, key=lambda name: name != head.bias_name)  # the head's own bias first
    found = [one for name in tried if (one := _relation(name, head, runs)) is not None]
    if len(subject.shapes) > 1:
        # The number of positions of a map follows from the size of the image. Where that size would
        # only be a guess, relations of parameters that make maps are not used.
        found = [relation for relation in found if relation.parameter not in runs[0].positions]
    return tuple(found)


def _relation(name: str, head: Head, runs: Sequence[Probe]) -> Relation | None:
    """Return the first relation that holds for one parameter, if any does."""
    tries = (relation for fit in FITTERS for relation in fit(name, head, runs[:PROBE_FITTED]))
    checked = (_checked(relation, head, runs[PROBE_FITTED:]) for relation in tries)
    return next((relation for relation in checked if relation is not None), None)


def _checked(relation: Relation, head: Head, runs: Sequence[Probe]) -> Relation | None:
    """Return the relation with its accuracy, if it gives the true scalar of unseen probes."""
    factors = factor(head, [run.share for run in runs])
    g = torch.stack([run.share[relation.parameter] for run in runs]).double()
    true = (torch.stack([run.delta for run in runs]) * factors.u).sum(-1)
    estimate = relation.solve(g, head, factors)
    tolerance = PROBE_TOLERANCE * factors.relative
    off = (estimate.scalar - true).abs() / true.abs().clamp_min(SMALLEST_NORMAL)
    sure = estimate.error <= PROBE_UNCERTAIN * true.abs()
    holds = (off <= tolerance) & sure & (estimate.misfit <= tolerance)
    # A gradient of zeros says nothing either way, but at least one probe has to say something.
    silent = estimate.misfit.isinf()
    if bool(silent.all()) or not bool((holds | silent).all()):
        return None
    return replace(relation, accuracy=float(off[~silent].max()))  # type: ignore[type-var]
