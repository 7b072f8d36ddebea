"""This package recovers labels from updates of local training (docs/local-training.md)."""
