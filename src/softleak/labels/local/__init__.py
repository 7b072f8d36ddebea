"""Labels behind updates of local training (docs/local-training.md), in reading order:

- ``recover``: which way leads back, and what is doubted.
- ``recursion``, ``head_alone``: the head alone was trained.
- ``whole_network``, ``whole_head``: all layers were trained, with a readable input or without.
- ``fitting_clients``: the client that would explain an update which the stated one does not.
- ``proportions``: class proportions behind the update of many samples.
"""
