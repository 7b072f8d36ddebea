"""Recovery behind noise: a likelihood instead of a proof (docs/noise.md)."""
