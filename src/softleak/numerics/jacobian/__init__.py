"""Products with the Jacobian of a share, many tangents at once.

``operations`` holds one recorded operation at an iterate, ``rules`` says how each kind of operation
carries tangents, and ``products`` records a gradient and multiplies with its Jacobian.
"""
