"""The input behind a share, computed layer by layer (§4.2 and beyond) with its own error.

A walk starts at the head, whose input the label recovery found, and ends at the model's input:

- ``invert``: the public ``invert``, which picks the way that a model allows, and the walk.
- ``results``: what is said of an input: the ``Inversion``, or why there is no way.
- ``chain``: which step each layer or function call of a traced model becomes.
- ``steps``, ``conv``: what is known between two layers, and one step per kind of layer.
- ``patches``: the image of a vision transformer, from its patch embedding.
- ``texts``: the words of a text, from the embeddings of its tokens.
"""
