"""Adapters of a text classifier, and the update of one client, audited in one command."""
