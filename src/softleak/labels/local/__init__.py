"""Recover labels from updates of local training (docs/local-training.md)."""
