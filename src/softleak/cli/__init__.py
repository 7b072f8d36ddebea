"""The command line: strings become objects here and nowhere else.

Read in this order: ``app`` (the commands), ``options`` (what can be asked), ``audit`` (from options
to an audit, its outputs and exit codes), ``diff``, ``doctor``, and ``exits`` (exit codes, errors,
progress).
"""

from softleak.cli.app import app

__all__ = [
    "app",
]
