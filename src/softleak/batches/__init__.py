"""Recover every sample of a batch from one share (docs/batches.md).

In reading order:

- ``systems``: the factors of a gradient, the equations of one sample and of all, their rounding.
- ``certificate``: what the equations prove, and other labels that explain the gradient as well.
- ``search``: samples one at a time, and sets of samples that explain it together.
- ``sparse``: the attacks on fully connected ReLU layers, whose labels may be any.
- ``recover``: the strongest attack that applies, that on the head's gradient, and what is said.
"""
