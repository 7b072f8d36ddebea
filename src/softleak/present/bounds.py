"""The words of what no attack can do."""

from __future__ import annotations

from collections.abc import Iterator

from softleak.audit.leaks import Leak
from softleak.audit.report import Audit
from softleak.audit.sweeps import Rate
from softleak.bounds.claims import ClaimCheck
from softleak.bounds.hidden import HiddenProof
from softleak.core.vocabulary import written

NEVER = Rate(0, 1)
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
    yield from _of_every_bound(proof.noise)
    likely = "equally likely" if proof.uniform else "as likely as was said"
    yield f"The secret is one of {proof.candidates} candidates, {likely}."
    beside = "" if proof.samples == 1 else f", all other {proof.samples - 1} samples"
    rest = ", the sample's input" if proof.what == "label" else ""
    yield (
        f"The attacker knows the model, the client{beside}{rest} and all but the secret: who "
        "knows less is right less often."
    )
    yield f"The probability is that of {proof.trials} simulated attacks, with 99 % confidence."


def _of_every_bound(noise: float) -> Iterator[str]:
    yield (
        f"Every entry carries independent Gaussian noise of standard deviation {noise:.3g} or "
        "more, drawn once, of a size that was not chosen by looking at the update, and nobody can "
        "predict it."
    )
    yield (
        "Nothing but this one update is seen: no buffers such as those of BatchNorm, no loss of "
        "the client, and no further updates of the same sample, which add up."
    )


def claim_in_words(found: ClaimCheck) -> str:
    """Return what became of a claim, in sentences."""
    wrong = "; ".join(one.value for one in found.contradictions)
    verdict = f"The claim does not hold: {wrong}." if wrong else "Nothing contradicts the claim."
    follows = "" if found.epsilon is None else f" The ε that follows is {found.epsilon:.4g}."
    return " ".join([verdict + follows, *(one.value for one in found.cautions)])


def claim_rows(found: ClaimCheck) -> Iterator[tuple[str, float | None, str]]:
    """Yield what a claim is about, what was said of it, and what was found."""
    said, passed = found.claim, found.length
    reach = "not measured" if passed is None else f"{max(passed[0], 0):.4g} to {passed[1]:.4g}"
    yield "clip (L2 norm of a step)", said.clip, reach
    yield "sensitivity", said.sensitivity, f"{found.sensitivity:.4g}"
    low, high = found.noise.weakest
    least = f"{low:.4g} to {high:.4g} on the tensor with the least"
    yield "noise, standard deviation", said.noise, least
    added = "not computed" if found.epsilon is None else f"{found.epsilon:.4g} or more"
    yield "ε, a sample added or taken away", said.epsilon, added
    if found.replaced is not None:
        yield "ε, a sample replaced", None, f"{found.replaced:.4g} or more"


def unaffordable(audit: Audit) -> str:
    """Return a sentence for the headline if no noise that is worth its price hides a label."""
    costly = [hiding for _, hiding in audit.hiding if not hiding.affordable]
    if not costly:
        return ""
    most, wanted = max(hiding.clients for hiding in costly), costly[0].wanted
    many = f" of {most:,} clients or more" if most else ", not noise on each"
    return (
        f"No noise that leaves a cosine of {wanted:g} hides the label of a single update from "
        f"every attack: add the updates{many} up before anyone sees them, take larger batches, or "
        "tell fewer classes."
    )


def hiding_words(audit: Audit) -> Iterator[str]:
    """Yield which noise is proved to hide the label of each share, in sentences."""
    for name, hiding in audit.hiding:
        if hiding.proof is None:
            yield f"{name}: no noise hides the label so far; a guess is right as often."
            continue
        yield (
            f"{name}: from Gaussian noise of standard deviation {written(hiding.proof.noise)} on, "
            f"no attack names the label with a probability of more than {hiding.proof.target:.0%}. "
            f"That leaves the update a cosine of {hiding.cosine:.2g}; the mean of "
            f"{hiding.clients:,} like it has one of {hiding.wanted:g}."
        )
        if hiding.declared is not None:
            yield f"{name}, behind the noise that is declared: {hiding.declared.message}"


def hiding_rests_on(audit: Audit) -> list[str]:
    """Return what the bounds of an audit rest on, each sentence once."""
    proofs = [p for _, h in audit.hiding for p in (h.declared, h.proof) if p is not None]
    return list(dict.fromkeys(words for proof in proofs for words in proof.assumptions))


def zones(audit: Audit) -> dict[str, str | float] | None:
    """Return three zones of Gaussian noise: where the label leaks, is not decided, and is hidden.

    None if the noise that hides is not known.
    """
    proofs = [hiding.proof for _, hiding in audit.hiding]
    sizes = [proof.noise for proof in proofs if proof is not None]
    if not sizes or len(sizes) < len(proofs):
        return None
    responses = () if audit.what_if is None else audit.what_if.responses
    seen = [
        point.setting for response in responses if response.name == "Gaussian noise"
        for point in response.points if point.rates.get(Leak.CLASS, NEVER).hits
    ]  # fmt: skip
    hidden, leaks = max(sizes), max(seen, default=0.0)
    factor = f"a factor of {written(hidden / leaks)}" if leaks else "no attack was tried"
    return {"leaks": written(leaks), "hidden": written(hidden), "factor": factor}
