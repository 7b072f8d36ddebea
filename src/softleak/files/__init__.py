"""Tensors by name, to and from disk. Nothing in a file is ever executed."""

from softleak.files.content import Content
from softleak.files.folder import is_checkpoint_folder
from softleak.files.formats import ENDINGS
from softleak.files.store import load, parts, save

__all__ = ["ENDINGS", "Content", "is_checkpoint_folder", "load", "parts", "save"]
