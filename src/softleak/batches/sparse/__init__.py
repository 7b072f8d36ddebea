"""Batches behind a ReLU: the samples are the sparse vectors of a known space.

``directions``: the search for sparse vectors. ``layer``: which layers allow it. ``inputs``: every
input from a fully connected first layer. ``features``: every feature before the head. ``labels``:
the labels that follow, and what of it all is proved.
"""
