"""Recover the words of a text, and say of each how certain it is.

- ``plan``: what is known of each place of a text, and which gradients tell the words.
- ``embeddings``: words and their places from the gradients of the embeddings.
- ``first_layer``: the layer that reads embedded tokens, and the client run on a text.
- ``span``: words from that layer alone, where the embeddings send no gradient.
- ``read``: the attack that puts these together, for one text and for a small batch.
"""
