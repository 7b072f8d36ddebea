"""Keep the old path of ``softleak.audit.metrics`` working."""

import warnings

from softleak.audit.metrics import *  # noqa: F403

warnings.warn(
    "softleak.metrics has moved: import softleak.audit.metrics instead",
    DeprecationWarning,
    stacklevel=2,
)
