"""The catalogue of attacks, and of each how it ended on a share.

A new attack is a line in ``CATALOGUE`` with a function that reads its outcome off a report. What
somebody adds to ``INPUT_ATTACKS`` is listed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from softleak.audit.input_attacks import (
    EMBEDDINGS,
    GAUSS_NEWTON,
    INPUT_ATTACKS,
    INVERSION,
    LOCAL_FIRST_LAYER,
    LOCAL_MATCHING,
    MATCHING,
    QUOTIENT,
    Attack,
)
from softleak.audit.leaks import Leak
from softleak.audit.report import AuditReport, Ending, Method, Outcome, named
from softleak.core.fit import Bearing, Topic
from softleak.core.results import Status
from softleak.present.fit import in_a_word
from softleak.present.words import features_words, inputs_words

SEVERAL_MIXED = (Outcome.NOT_APPLICABLE, "the update mixes several samples or steps")
ONE_SAMPLE = (Outcome.NOT_APPLICABLE, "the update is read as that of one sample")
NO_CLIENT = (Outcome.NOT_APPLICABLE, "no local training was declared (--client)")
SIGNS_ONLY = (Outcome.NOT_APPLICABLE, "the update is a pattern of signs, not a gradient")


@dataclass(frozen=True, kw_only=True)
class CataloguedAttack(Attack):
    """One attack, and how a report tells how it ended and why."""

    read: Callable[[AuditReport], Ending]  # of an update to which the attack applies
    alone: bool = False  # whether it applies to the update of one sample only
    of_gradient: bool = False  # whether it applies to a gradient, and not to its signs
    trained: bool = False  # whether it applies to declared local training only

    @classmethod
    def of(
        cls, attack: Attack, read: Callable[[AuditReport], Ending] | None = None, **more: bool
    ) -> CataloguedAttack:
        """Return a row of an audit with its ending, by default the one that the audit noted."""
        read = read or partial(_noted, attack)
        return cls(attack.id, attack.name, attack.method, attack.aim, read=read, **more)

    def ending(self, report: AuditReport) -> Ending:
        """Return how it ended on one share, and why."""
        if self.alone and report.several:
            return SEVERAL_MIXED
        if self.of_gradient and report.composition.signs:
            return SIGNS_ONLY
        if self.trained and report.knowledge.client is None:
            return NO_CLIENT
        outcome, why = self.read(report)
        if outcome is Outcome.NO_SUCCESS and not report.fit.holds:  # it failed for nothing
            found = in_a_word(report.fit)
            return Outcome.NOT_APPLICABLE, f"the update contradicts what it rests on: {found}"
        return outcome, str(why)


def endings(report: AuditReport) -> dict[str, Ending]:
    """Return how every attack of the catalogue ended on one share."""
    return {attack.id: attack.ending(report) for attack in every_attack()}


def every_attack() -> tuple[CataloguedAttack, ...]:
    """Return the catalogue, with the attacks on inputs that somebody added to an audit."""
    known = {attack.id for attack in CATALOGUE}
    added = [attack for attack in INPUT_ATTACKS if attack.id not in known]
    return (*CATALOGUE, *map(CataloguedAttack.of, added))


def tally(attack: CataloguedAttack, reports: Sequence[AuditReport]) -> dict[Outcome, int]:
    """Return of how many shares an attack ended in each way."""
    ends = [attack.ending(report)[0] for report in reports]
    return {outcome: ends.count(outcome) for outcome in Outcome}


def _label(report: AuditReport) -> Ending:
    if report.label.known:
        return Outcome.SUCCEEDED, "one label explains the update, and its error is bounded"
    if report.label.proved in ("CLASS", "PROBABLE"):
        return Outcome.SUCCEEDED, "the class is known, the weights of the label are not"
    return Outcome.NO_SUCCESS, report.why


def _evidence(report: AuditReport) -> Ending:
    pieces = report.label.recovery.evidence
    if not pieces:
        return Outcome.NOT_APPLICABLE, "no other layer of this model tells the missing number"
    agreed = [piece.parameter for piece in pieces if piece.agrees]
    if agreed and report.label.known:
        return Outcome.SUCCEEDED, f"the missing number follows from {', '.join(agreed)}"
    if agreed:
        words = f"the missing number follows from {', '.join(agreed)}, but no label is certain"
        return Outcome.NO_SUCCESS, words
    return Outcome.NO_SUCCESS, "other layers contradict each other or say nothing"


def _noise(report: AuditReport) -> Ending:
    if not report.label.recovery.noise:
        clean = report.label.known or report.fit[Topic.NOISE].bearing is Bearing.HOLDS
        none = "the update carries no noise beyond rounding" if clean else "no noise was measured"
        return Outcome.NOT_APPLICABLE, none
    if report.label.known or report.label.class_index is not None:
        return Outcome.SUCCEEDED, "the noise leaves the class a probability of 90 % or more"
    return Outcome.NO_SUCCESS, "the noise leaves no class a probability of 90 %"


def _rereading(report: AuditReport) -> Ending:
    recovery = report.label.recovery
    if recovery.readings:
        return Outcome.SUCCEEDED, "another scale or sign gives the numbers a simple label"
    if report.knowledge.scale is not None:
        return Outcome.NOT_APPLICABLE, "the scale of the update was stated"
    if report.label.known:
        return Outcome.NOT_APPLICABLE, "a label explains the update as it is"
    if recovery.status is not Status.NO_SOLUTION:
        return Outcome.NOT_APPLICABLE, f"it is for updates without a label: {recovery.status.value}"
    return Outcome.NO_SUCCESS, "no other scale or sign gives exactly one label"


def _local(report: AuditReport) -> Ending:
    recovery = report.label.recovery
    known = named(recovery) or report.label.class_index is not None
    return Outcome.of(known), recovery.message


def _feature(report: AuditReport) -> Ending:
    if report.several and report.samples.attacked:
        return Outcome.of(report.samples.features > 0), features_words(report.samples)
    if report.several:
        return SEVERAL_MIXED
    if report.feature.proved:
        return Outcome.SUCCEEDED, "every entry is known, to a relative error below 1 %"
    return Outcome.NO_SUCCESS, "the missing number, and so the size of the feature, is not proved"


def _composition(report: AuditReport) -> Ending:
    found = report.composition
    if not found.attacked:
        return Outcome.NOT_APPLICABLE, found.why
    return Outcome.of(bool(found.present)), found.message


def _samples(report: AuditReport) -> Ending:
    found = report.samples
    if not report.several:
        return ONE_SAMPLE
    if not found.attacked:
        return Outcome.NOT_APPLICABLE, str(found.reason)
    return Outcome.of(bool(found.proved)), found.message


def _batch_inputs(report: AuditReport) -> Ending:
    if not report.several:
        return ONE_SAMPLE
    if report.samples.inputs and report.samples.searched is None:
        return Outcome.SUCCEEDED, inputs_words(report.samples)
    if not report.input.asked:
        return Outcome.NOT_CARRIED_OUT, report.input.message
    return Outcome.NOT_APPLICABLE, "no first layer of this model tells the inputs of this batch"


def _matching(report: AuditReport) -> Ending:
    if report.input.method == Method.SOLVING:
        return Outcome.NOT_CARRIED_OUT, "Gauss–Newton had recovered the input already"
    return _noted(MATCHING, report)


def _solving(report: AuditReport) -> Ending:
    """Return how Gauss–Newton ended; if it was not tried, matching was not tried either."""
    return _noted(GAUSS_NEWTON if GAUSS_NEWTON.id in report.input.attempts else MATCHING, report)


def _noted(attack: Attack, report: AuditReport) -> Ending:
    """Return how an attack on the input ended, as the audit noted it."""
    found = report.input
    if attack.id in found.attempts:
        return found.attempts[attack.id]
    if not found.asked:
        return Outcome.NOT_CARRIED_OUT, found.message
    if found.attempts and report.knowledge.client is not None:
        return Outcome.NOT_APPLICABLE, "the update is one of local training"
    return SEVERAL_MIXED if found.batch else (Outcome.NOT_APPLICABLE, found.message)


def _elsewhere(report: AuditReport) -> Ending:
    known = report.knows_label
    why = "the attacks above are stronger" if known else "an audit does not have them"
    return Outcome.NOT_CARRIED_OUT, f"{why}; softleak's benchmarks have them"


CATALOGUE: list[CataloguedAttack] = [
    CataloguedAttack(
        "label-scalar", "Label from the last layer",
        "The gradient of the last layer leaves one number open. All its possible values are "
        "searched, and it is certified whether only one of them fits.", Leak.LABEL,
        read=_label, alone=True, of_gradient=True,
    ),
    CataloguedAttack(
        "label-evidence", "Label from other layers",
        "Gradients of biases and norms before the last layer tell the missing number, whatever the "
        "label.",
        Leak.LABEL, read=_evidence, alone=True, of_gradient=True,
    ),
    CataloguedAttack(
        "label-noise", "Label behind noise",
        "The posterior of the label is integrated behind noise whose size is measured.",
        Leak.CLASS, read=_noise, alone=True, of_gradient=True,
    ),
    CataloguedAttack(
        "label-rereading", "Label at another scale or sign",
        "Where no label explains the update, other factors and the opposite sign are tried.",
        Leak.LABEL, read=_rereading, alone=True, of_gradient=True,
    ),
    CataloguedAttack(
        "label-local-training", "Label behind local training",
        "The declared steps of the client are undone.", Leak.LABEL, read=_local, trained=True,
    ),
    CataloguedAttack(
        "class-composition", "Classes of several samples",
        "A class with a negative sum of p − y is proved to be among the labels.",
        Leak.COMPOSITION, read=_composition,
    ),
    CataloguedAttack(
        "batch-samples", "Every sample of a batch",
        "Each sample of a batch solves the same small system of the last layer.",
        Leak.LABEL, read=_samples,
    ),
    CataloguedAttack(
        "batch-inputs", "Inputs of a batch, from the first layer",
        "Behind a fully connected layer with a ReLU each input of a batch follows from its zeros.",
        Leak.INPUT, read=_batch_inputs,
    ),
    CataloguedAttack(
        "feature", "Feature before the last layer",
        "With that number the input of the last layer follows exactly.",
        Leak.FEATURE, read=_feature, of_gradient=True,
    ),
    CataloguedAttack.of(QUOTIENT),
    CataloguedAttack.of(EMBEDDINGS),
    CataloguedAttack.of(INVERSION),
    CataloguedAttack.of(MATCHING, _matching),
    CataloguedAttack.of(LOCAL_FIRST_LAYER, trained=True),
    CataloguedAttack.of(LOCAL_MATCHING, trained=True),
    CataloguedAttack.of(GAUSS_NEWTON, _solving),
    CataloguedAttack(
        "label-earlier", "Earlier label attacks (iDLG, ratio of the bias)",
        "They read one class off signs or ratios.", Leak.LABEL, read=_elsewhere,
    ),
]  # fmt: skip
