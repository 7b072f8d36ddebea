"""Labels behind updates of local training (docs/local-training.md), in reading order:

- ``recover``: which way leads back, what is doubted, and which client would fit if not the stated.
- ``head_alone``: the head alone was trained.
- ``whole``: all layers were trained, with a readable input or without.
- ``proportions``: updates of many samples.
"""
