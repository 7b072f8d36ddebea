"""The soft label and the last-layer feature behind one gradient (§3), in reading order:

- ``recover``: the public functions; which shares are one sample's, and which way each goes.
- ``curve``, ``pseudo``, ``scale``: the label as a function of one scalar.
- ``search``: every minimum along such a curve; ``certify``: what the minima prove.
- ``solve``: curve, search and certificate of one batch; ``review``: doubts about a label that fits.
- ``evidence``: what the gradients of other layers say about the scalar.
- ``decay``, ``otherwise``: shares with weight decay, and those that are not one clean sample's.
- ``noisy``: a likelihood instead of a proof, where the share carries noise.
- ``local``: updates of several local steps; ``composition``: batches of many samples.
- ``messages``: the answer in words.
"""
