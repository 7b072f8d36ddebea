"""Products with the Jacobian of what a client sends, recorded once and replayed for many tangents.

``operations``: one recorded operation. ``rules``: how each carries tangents. ``products``: the
recording, and the Jacobian in chunks.
"""
