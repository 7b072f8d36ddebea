"""The old path of ``softleak.audit``."""

import warnings

from softleak.audit import *  # noqa: F403

warnings.warn(
    "softleak.auditing has moved: import softleak.audit instead",
    DeprecationWarning,
    stacklevel=2,
)
