"""softleak inside other people's frameworks: each needs an extra of its own.

Read in this order: ``auditor`` (clients' updates and the audit of a round), ``guard`` (what becomes
of a client's own update), then the frameworks: ``flower.guard``, ``flower.monitor``, ``nvflare``.
"""
