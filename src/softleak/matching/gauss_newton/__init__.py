"""Gauss–Newton solves for the inputs of a smooth network with all numbers of a share at once.

Its Jacobian is a certificate: it says which entries of the inputs the share determines, and how
well. The modules, in reading order: ``equations`` (the unknowns, and what a share says of them),
``products`` (with the Jacobian), ``metric`` (how long a change of the unknowns is), ``descent``
(the walk, and its steps with a normal matrix or without), ``escape`` (past a fold), ``certificate``
(what is proved), ``method`` (``GaussNewton``, which tries several starts) and ``reach`` (how good
an image may be behind a defence).
"""

from softleak.matching.reconstruction import Certificate

__all__ = ["Certificate"]
