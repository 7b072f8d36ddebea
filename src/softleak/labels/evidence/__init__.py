"""What the gradients of other layers say about the scalar.

``relation`` states what a piece of evidence is, ``head_bias``, ``pointwise_relations`` and
``lattice`` are the three kinds, ``probes`` finds which of them a model offers, and ``combine``
compares those of one share with each other.
"""
