"""A pretrained encoder from a folder, with a new head: what its gradients give away of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.transformers.classifiers import library
from benchmarks.transformers.sentences import LONGEST, SHORTEST
from softleak.paper import data

PRETRAINED_CLASSES = 4


def encoder(folder: Path) -> nn.Module:
    """Return the encoder of a folder with a new, random head; nothing is downloaded."""
    torch.manual_seed(0)
    made: nn.Module = library().AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=PRETRAINED_CLASSES, local_files_only=True
    )
    return made.eval()


def folder_sentences(folder: Path) -> list[list[int]]:
    """Return the embedded verses as ids of the folder's own tokenizer, 5 to 120 of them each."""
    tokenizers: Any = __import__("tokenizers")
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.no_padding()
    made.no_truncation()
    drawn = [made.encode(verse).ids for verse in data.verses()]
    return [ids for ids in drawn if SHORTEST <= len(ids) <= LONGEST]
