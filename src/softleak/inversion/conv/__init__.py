"""The input of a convolution, from its output and its gradients.

``geometry``: its linear maps without a matrix. ``rows``: the weighted equations, and their normal
matrix. ``solve``: the solution and its error. ``layer``: the step of the walk back.
"""
