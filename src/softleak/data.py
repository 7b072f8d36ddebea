"""Keep the old path of ``softleak.paper.data`` working."""

import warnings

from softleak.paper.data import *  # noqa: F403

warnings.warn(
    "softleak.data has moved: import softleak.paper.data instead",
    DeprecationWarning,
    stacklevel=2,
)
