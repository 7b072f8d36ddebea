"""Recover every sample of a batch from one share (docs/method.md, Batches)."""
