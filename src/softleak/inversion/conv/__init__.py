"""One convolution of a chain, walked back by least squares.

- ``rows``: where the convolution looks, the equations ("rows") of its input, their normal matrix
  and its approximate inverses.
- ``layer``: the quick and the thorough solution of the rows, and the step of the chain.
"""
