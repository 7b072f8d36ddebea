"""A federation on the embedded images, with and without a guard: ``python -m examples.flower``."""
