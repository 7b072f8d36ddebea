"""Recover the words of a text, and say of each how certain it is.

- ``embeddings``: words and their places from the gradients of the embeddings.
- ``span``: words from the layer that reads embedded tokens, where embeddings send no gradient.
- ``read``: the attack that puts these together, for one text and for a small batch.
"""
