"""Keep the old path of ``softleak.paper.models`` working."""

import warnings

from softleak.paper.models import *  # noqa: F403

warnings.warn(
    "softleak.models has moved: import softleak.paper.models instead",
    DeprecationWarning,
    stacklevel=2,
)
