"""One convolution of a chain, walked back by least squares.

- ``geometry``: where the convolution looks, and its transpose.
- ``rows``: the equations ("rows") of the input, their normal matrix and its approximate inverses.
- ``layer``: the quick and the thorough solution of the rows, and the step of the chain.
"""
