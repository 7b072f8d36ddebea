"""A federation in NVIDIA FLARE's simulator, without and with softleak's filter."""
