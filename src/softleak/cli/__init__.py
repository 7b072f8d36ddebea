"""The command line: strings become objects here and nowhere else."""

from softleak.cli.app import app

__all__ = [
    "app",
]
