"""Recover a batch from the zeros that ReLUs leave in the gradients of fully connected layers.

- ``directions``: the sparse vectors of a gradient's space, one for each sample.
- ``layer``: the layers with such gradients, the labels behind them, and the verdict on a batch.
- ``attacks``: those on the first layer and on the last two.
"""
