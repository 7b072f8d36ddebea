"""Keep the old path of ``softleak.present`` working."""

import warnings

from softleak.present import *  # noqa: F403

warnings.warn(
    "softleak.report has moved: import softleak.present instead",
    DeprecationWarning,
    stacklevel=2,
)
