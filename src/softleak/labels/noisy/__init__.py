"""Recovery behind noise: the same equations as without, with a likelihood
instead of a proof.

``spectrum`` measures the noise, ``signal`` separates the sample from it, ``posterior`` gives the
probability of every scalar and label, ``integrate`` and ``prior_sampling`` integrate it, and
``answer`` turns the result into a recovery. See docs/method.md, Noise.
"""
