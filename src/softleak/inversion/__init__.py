"""This package inverts a network layer by layer (§4.2 and beyond) and predicts its own error.

A walk starts at the head, whose input the label recovery found, and ends at the model's input:

- ``walk``: the walk back through a ``chain`` from its ``start``.
- ``state``, ``tangent``, ``step``: what is known between two layers, and how a step changes it.
- ``linear``, ``conv``, ``activation_step``, ``pool``, ``lossless``: one step per kind of layer.
- ``conv_rows``, ``rows``, ``normal_matrix``: the least-squares problem behind a convolution.
- ``solve_rows``, ``quick_factor``, ``least_squares``, ``conjugate_gradients``, ``row_errors``,
  ``changed_matrix``: its solution and the error of that.
- ``matrix_tiles``, ``cholesky``: large matrices.
- ``chain_steps``, ``functional``, ``graph``: which step a layer or function call becomes.
- ``grid``: the scale of a layer's input, from the grid of floating-point numbers.
- ``choose``: the public ``invert``, which picks the way that a model allows.
- ``pixel_index``, ``patch_plan``, ``patch_inverse``: the image of a vision transformer;
  ``patch_weights`` weighs its equations by their rounding, ``pixel_levels`` and
  ``patch_levels`` find the levels of an 8-bit image.
- ``texts``: the words of a text.
- ``classic``: the paper's own procedure and the older bias attack, as baselines.
"""
