"""This package reads and writes tensors by name. Nothing in a file is ever executed."""

from softleak.tensor_files.content import Content
from softleak.tensor_files.fingerprint import fingerprint
from softleak.tensor_files.formats import ENDINGS
from softleak.tensor_files.load_save import load, parts, save
from softleak.tensor_files.pretrained_folder import is_checkpoint_folder

__all__ = ["ENDINGS", "Content", "fingerprint", "is_checkpoint_folder", "load", "parts", "save"]
