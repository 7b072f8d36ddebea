"""What the gradients of other layers say about the scalar.

``relation`` states what a piece of evidence is and holds that of the head's bias, ``pointwise`` has
the other kinds, ``probes`` finds which of them a model offers, and ``combine`` compares those of
one share with each other.
"""
