"""This module says who attacks in an audit and what they know, derived from ``Knowledge``."""

from __future__ import annotations

from softleak.auditing.reports import Audit
from softleak.knowledge import Knowledge

ATTACKER = (
    "The attacker reads what a client sends: a server that follows the protocol, or whoever sees "
    "its traffic.",
    "The attacker has the model with the weights before the step, and the update as it was sent.",
    "The attacker does not change the training and has no data of the client.",
)


def attacker_knowledge(knowledge: Knowledge) -> tuple[tuple[str, str], ...]:
    """Return what the attacker knows of an update, as questions and answers.

    Args:
        knowledge: what was assumed of the update before it was attacked.
    """
    family = knowledge.family
    noise = f"standard deviation {knowledge.noise:g}, as declared" if knowledge.noise else (
        "not declared; it is measured in the update"
    )  # fmt: skip
    return (
        ("Model and weights", "known"),
        ("Loss", "cross-entropy"),
        ("Form of the label", "not assumed where other layers tell it, else one-hot, smoothed or a "
         "mix of two classes" if family is None else f"{family}"),
        ("Scale of the update", _scale(knowledge)),
        ("Noise on the update", noise),
        ("Number of samples", str(knowledge.samples or "not stated")),
        ("Local training", str(knowledge.client or "not stated")),
        ("Layers used", "the last layer alone" if knowledge.head_only else "all that were sent"),
        ("Other data", "none"),
    )  # fmt: skip


def _scale(knowledge: Knowledge) -> str:
    """Return what is known of the factor on an update."""
    if knowledge.scale is not None:
        unknown = "unknown; any positive factor is considered"
        return unknown if knowledge.scale_unknown else "known"
    if knowledge.lr is not None:
        return f"learning rate {knowledge.lr:g}, as stated; other factors are considered as well"
    if knowledge.client is not None:
        return "as the local training stated below leaves it"
    others = "factors" if knowledge.is_gradient else "factors and signs"
    return f"not stated; other {others} are considered"


def knowledge_of(audit: Audit) -> tuple[tuple[str, str], ...]:
    """Return what the attacker knew in an audit; where shares differ, every answer is given."""
    found: dict[str, list[str]] = {}
    for report in audit.reports:
        for question, answer in attacker_knowledge(report.knowledge):
            answers = found.setdefault(question, [])
            if answer not in answers:
                answers.append(answer)
    return tuple((question, "; or ".join(answers)) for question, answers in found.items())


def assumptions_of(audit: Audit) -> tuple[str, ...]:
    """Return every assumption that some verdict of an audit rests on, each once."""
    return tuple(dict.fromkeys(a for report in audit.reports for a in report.assumptions))
