"""This package reads and writes tensors by name. Nothing in a file is ever executed."""

from softleak.io.checkpoints import is_checkpoint_folder
from softleak.io.formats import ENDINGS, Content, fingerprint, load, parts, save

__all__ = [
    "ENDINGS",
    "Content",
    "fingerprint",
    "is_checkpoint_folder",
    "load",
    "parts",
    "save",
]
