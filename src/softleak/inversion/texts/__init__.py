"""Recover the words of a text, and say of each how certain it is.

- ``text_result``: what is known of each place of a text.
- ``text_plan``: which gradients tell the words, found by running the model.
- ``word_rows``: which rows of a table's gradient are not empty, and how large their errors are.
- ``word_places``: which word stands where, from the gradients of words and positions.
- ``first_layer``, ``span_check``: words from the first attention layer alone, where the
  gradients of the embeddings are missing.
- ``resimulation``: whether a text explains the whole share.
- ``read_batch``, ``both_ways``: the texts of a small batch, where embeddings are frozen.
- ``read_embeddings``, ``read_text``: the attack that puts these together.
"""
