"""Benchmarks of speed and quality, outside the tests; `python -m benchmarks` times all parts."""
