"""Numerical tools that know no attack.

``recorder``: the one place where hooks are set on a model. ``levenberg``: many small nonlinear
least-squares problems at once. ``conjugate_gradients`` and ``least_squares``: linear systems, with
the error of every unknown. ``gram``: normal matrices of one Jacobian under many weights.
``jacobian/``: products with the Jacobian of a client's gradient. ``rounding``: in which number
format a client computed.
"""
