"""softleak inside other people's frameworks: each needs an extra of its own.

Read in this order: ``updates`` (one client's update, converted where it enters), ``auditor`` (the
audit of a round), ``guard`` (what becomes of a client's own update), then the frameworks:
``flower.guard`` and ``flower.monitor`` with its ``flower.page``, and ``nvflare``.
"""
