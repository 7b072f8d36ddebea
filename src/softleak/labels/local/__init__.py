"""Labels behind updates of local training (docs/local-training.md), in reading order:

- ``recipe``: steps of SGD as numbers; ``recover``: which way leads back, and what is doubted.
- ``recursion``, ``head_alone``, ``rounded_weights``: the head alone was trained.
- ``whole_network``, ``whole_head``: all layers were trained, with a readable input or without.
- ``fitting_clients``: the client that would explain an update which the stated one does not.
- ``proportions``: class proportions behind the update of many samples.
"""
