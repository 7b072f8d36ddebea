"""What travels through softleak, and what is known of it. To be read in this order.

``share``: what a client sends. ``client``: how it is made from data. ``input_spec`` and
``forward``: which inputs a model takes, and how it is run. ``head``: the classifier
``z = W x + b``, found and verified. ``subject``: the model, made ready once.
``factors``: ``G = σ u vᵀ`` (§3.1). ``update``: the gradient that an update means. ``families``:
what is assumed of a label (§3.4). ``knowledge``: what an attacker assumes. ``results``: what an
attack answers. ``vocabulary`` and ``errors``: the words that all rooms share.
"""
