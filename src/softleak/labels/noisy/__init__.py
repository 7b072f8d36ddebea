"""Recovery behind noise: the same equations as without, with a likelihood instead of a proof.

``spectrum`` says what a feature usually is, measures the noise and separates the sample from it,
``posterior`` gives the probability of every scalar and label, and ``recover`` integrates it and
turns the result into a recovery. See docs/method.md, Noise.
"""
