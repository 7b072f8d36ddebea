"""Keep the old path of ``softleak.audit`` working."""

import warnings

from softleak.audit import *  # noqa: F403

warnings.warn(
    "softleak.auditing has moved: import softleak.audit instead",
    DeprecationWarning,
    stacklevel=2,
)
