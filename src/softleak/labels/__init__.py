"""The soft label and the last-layer feature behind one gradient (§3), in reading order:

- ``recover``: the public functions; which shares are one sample's, and which way each goes.
- ``curve``: the label as a function of one scalar.
- ``search``: every minimum along such a curve; ``certify``: what the minima prove, in words too.
- ``solve``: curve, search and certificate of one batch, and doubts about a label that fits.
- ``evidence``: what the gradients of other layers say about the scalar.
- ``residual``: what each loss reads, the residual known or not; ``fit``: which loss it was.
- ``otherwise``: shares that are not one clean sample's, such as those with weight decay.
- ``noisy``: a likelihood instead of a proof, where the share carries noise.
- ``local``: updates of several local steps; ``composition``: the classes of many samples.
"""
