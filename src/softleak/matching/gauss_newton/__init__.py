"""Gauss–Newton solves for the inputs of a smooth network with all numbers of a share at once.

Its Jacobian is a certificate: it says which entries of the inputs the share determines, and how
well. The modules, in reading order:

- ``equations``: the unknowns of a batch, and what a share says of them.
- ``model``: the network in both precisions, and the normal equations at an iterate.
- ``descent``: Levenberg–Marquardt steps with a normal matrix.
- ``matrix_free``: the same where a normal matrix would be too large.
- ``escape``: leads a stuck walk on, past units on the wrong side of a fold.
- ``smoothness``: whether the network is smooth enough for a proof.
- ``rivals``: other inputs that would have sent the same.
- ``certificate``: whether the end of a walk is proved.
- ``method``: ``GaussNewton``, which tries several starts.
- ``reach``: how good an image may be behind a defence.
"""

from softleak.matching.reconstruction import Certificate

__all__ = [
    "Certificate",
]
