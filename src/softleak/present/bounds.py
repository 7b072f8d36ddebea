"""The words of what no attack can do."""

from __future__ import annotations

from collections.abc import Iterator

from softleak.bounds.hidden import HiddenProof

SECRETS = {"label": "the label", "input": "the input", "word": "the word"}


def proof_in_words(proof: HiddenProof) -> str:
    """Return what a proof says of every attack, in a sentence."""
    low, high = (f"{100 * end:.1f}" for end in proof.interval)
    verdict = "proved hidden" if proof.hidden else "not hidden"
    return (
        f"{SECRETS[proof.what].capitalize()} is {verdict}: the best possible attack on "
        f"{proof.candidates} candidates is right with a probability of {proof.success:.1%} ({low} "
        f"to {high} %), and a guess with {proof.chance:.1%}; at most {proof.target:.1%} was asked "
        "for."
    )


def proof_rests_on(proof: HiddenProof) -> Iterator[str]:
    """Yield what a proof rests on, in sentences."""
    yield (
        f"Every entry carries independent Gaussian noise of standard deviation {proof.noise:.3g} "
        "or more, drawn once, of a size that was not chosen by looking at the update."
    )
    yield "Nothing but this one update is seen; further updates of the same sample add up."
    likely = "equally likely" if proof.uniform else "as likely as was said"
    yield f"The secret is one of {proof.candidates} candidates, {likely}."
    beside = "" if proof.samples == 1 else f", all other {proof.samples - 1} samples"
    rest = ", the sample's input" if proof.what == "label" else ""
    yield (
        f"The attacker knows the model, the client{beside}{rest} and all but the secret: who "
        "knows less is right less often."
    )
    yield f"The probability is that of {proof.trials} simulated attacks, with 99 % confidence."
