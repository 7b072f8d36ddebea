"""How fast, against what, at which quality. Outside the tests: `python -m benchmarks`."""
