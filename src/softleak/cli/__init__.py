"""The command line: strings become objects here and nowhere else.

Read in this order: ``app`` (the commands), ``options`` (what can be asked), ``audit`` (outputs and
exit codes) and ``jobs`` (from options to an audit), ``diff``, ``doctor`` and ``model_list``, and
``exits`` (exit codes, errors and progress).
"""

from softleak.cli.app import app

__all__ = [
    "app",
]
