"""Operations of a client's gradient, recorded once and linearised for many tangents.

``operations``: one recorded operation, thin factors of its output, and the rules by which each kind
carries tangents. The products with the whole Jacobian are in ``matching.gauss_newton.products``.
"""
