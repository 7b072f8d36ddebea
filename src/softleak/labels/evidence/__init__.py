"""What the gradients of other layers say about the scalar.

``relation`` states what a piece of evidence is, holds that of the head's bias and compares those of
one share with each other. ``probes`` has the other kinds, and finds which of them a model offers.
"""
