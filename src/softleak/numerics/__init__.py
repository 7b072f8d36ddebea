"""Numerical tools that know no attack.

``least_squares``: linear systems, with the error of every unknown, conjugate gradients, normal
matrices under many weights, and many small nonlinear problems at once. ``operations``: recorded
operations that carry many tangents.
"""
