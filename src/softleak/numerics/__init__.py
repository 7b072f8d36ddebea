"""Numerical tools that know no attack.

``recorder``: the one place where hooks are set on a model. ``levenberg``: many small nonlinear
least-squares problems at once. ``least_squares``: linear systems, with the error of every
unknown, conjugate gradients, and normal matrices under many weights. ``operations``: recorded
operations that carry many tangents. ``rounding``: in which number format a client computed.
"""
