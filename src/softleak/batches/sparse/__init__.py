"""Recover a batch from the zeros that ReLUs leave in fully connected layers."""
