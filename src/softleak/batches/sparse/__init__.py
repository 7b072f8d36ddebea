"""Recover a batch from the zeros that ReLUs leave in the gradients of fully connected layers.

- ``layer``: the layers whose gradients are sums over few active samples.
- ``directions``: the sparse vectors of a gradient's space, one for each sample.
- ``labels``: the labels of recovered inputs, and the verdict on a batch.
- ``inputs``, ``features``: the attacks on the first layer and on the last two.
"""
