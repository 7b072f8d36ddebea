"""Keep the old path of ``softleak.guard.flower`` working."""

import warnings

from softleak.guard.flower import *  # noqa: F403

warnings.warn(
    "softleak.integrations.flower has moved: import softleak.guard.flower instead",
    DeprecationWarning,
    stacklevel=2,
)
