"""Tensors by name, in files. Nothing in a file is ever executed.

``formats``: reading and writing. ``untrusted``: what a file may claim. ``weights``: from a file's
names to a model's. ``atomic``: files that are written whole or not at all.
"""

from softleak.io.formats import (
    ENDINGS,
    Content,
    fingerprint,
    is_checkpoint_folder,
    load,
    parts,
    save,
)  # fmt: skip

__all__ = ["ENDINGS", "Content", "fingerprint", "is_checkpoint_folder", "load", "parts", "save"]
