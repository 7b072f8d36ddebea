"""Hold the old paths of ``softleak.guard.flower`` and ``softleak.guard.nvflare``."""
