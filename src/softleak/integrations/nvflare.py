"""Keep the old path of ``softleak.guard.nvflare`` working."""

import warnings

from softleak.guard.nvflare import *  # noqa: F403

warnings.warn(
    "softleak.integrations.nvflare has moved: import softleak.guard.nvflare instead",
    DeprecationWarning,
    stacklevel=2,
)
