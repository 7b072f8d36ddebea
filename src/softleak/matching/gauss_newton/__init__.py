"""Gauss–Newton solves for the inputs of a smooth network with all numbers of a share at once.

Its Jacobian is a certificate: it says which entries of the inputs the share determines, and how
well.
"""

from softleak.matching.reconstruction import Certificate

__all__ = [
    "Certificate",
]
