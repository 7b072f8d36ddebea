"""What no attack can do: bounds that hold behind Gaussian noise, whatever the attack.

``gaussians`` is the best attack on candidates whose updates are known but for the noise, ``means``
what a client sends under each candidate, ``hidden`` the verdict.
"""

from softleak.bounds.hidden import HiddenProof, prove_hidden

__all__ = ["HiddenProof", "prove_hidden"]
