"""The old path of ``softleak.present``."""

import warnings

from softleak.present import *  # noqa: F403

warnings.warn(
    "softleak.report has moved: import softleak.present instead",
    DeprecationWarning,
    stacklevel=2,
)
