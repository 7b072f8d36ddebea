"""Numerical tools that know no attack.

``recorder``: the one place where hooks are set on a model. ``least_squares``: linear systems, with
the error of every unknown, conjugate gradients, normal matrices under many weights, and many small
nonlinear problems at once. ``operations``: recorded
operations that carry many tangents. ``rounding``: in which number format a client computed.
"""
