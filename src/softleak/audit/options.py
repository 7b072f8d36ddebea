"""What an audit is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from softleak.core.errors import FileError
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.io.untrusted import check_file, shown
from softleak.labels.local.proportions import StandIns

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
SPACES = ("Ġ", "▁")  # how byte pairs and sentence pieces write a space before a word
CONTINUED = "##"  # how word pieces write that a word goes on


@dataclass(frozen=True)
class TokenNames:
    """The strings of a vocabulary, by token id."""

    names: Mapping[int, str]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> TokenNames:
        """Read a tokenizer's file, or a folder with one; raises ``FileError`` if there is none."""
        file = Path(path)
        if os.path.isdir(file):
            held_files = (file / name for name in TOKENIZER_FILES if (file / name).is_file())
            if (found := next(held_files, None)) is None:
                raise FileError(f"{shown(file.name)} holds none of {', '.join(TOKENIZER_FILES)}")
            file = found
        check_file(file)
        try:
            text = file.read_text("utf-8")
            if file.suffix == ".txt":
                return cls({i: shown(line) for i, line in enumerate(text.splitlines())})
            held = json.loads(text)
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise FileError(f"{shown(file.name)} is not a readable vocabulary") from error
        return cls(_vocabulary(held, file.name))

    def name(self, token: int | None) -> str:
        """Return a token as it is written in the vocabulary; its number if it is not there."""
        return "?" if token is None else self.names.get(token, f"#{token}")

    def word(self, token: int | None) -> tuple[str, bool]:
        """Return a token as people read it, and whether a space stands before it."""
        name = self.name(token)
        if name.startswith(CONTINUED):
            return name.removeprefix(CONTINUED), False
        for space in SPACES:
            if name.startswith(space):
                return name.removeprefix(space) or " ", True
        marked = any(n.startswith(SPACES) for n in list(self.names.values())[:2000])
        return name, not marked

    def sentence(self, tokens: Sequence[int | None]) -> str:
        """Return tokens as a sentence."""
        words = [self.word(token) for token in tokens]
        return "".join((" " if spaced else "") + word for word, spaced in words).strip()


NO_NAMES = TokenNames({})


def _vocabulary(held: object, name: str) -> dict[int, str]:
    """Return the strings by id of a tokenizer's or a vocabulary's JSON."""
    model = held.get("model", held) if isinstance(held, dict) else held
    words = model.get("vocab", model) if isinstance(model, dict) else model
    found: dict[int, str] = {}
    if isinstance(words, dict):
        found = {i: shown(word) for word, i in words.items() if type(i) is int}
    elif isinstance(words, list):  # pairs of a string and its score
        pairs = [pair for pair in words if isinstance(pair, list) and pair]
        found = {i: shown(str(pair[0])) for i, pair in enumerate(pairs)}
    added = held.get("added_tokens", []) if isinstance(held, dict) else []
    for one in added if isinstance(added, list) else []:
        if isinstance(one, dict) and type(one.get("id")) is int:
            found[one["id"]] = shown(str(one.get("content", "")))
    if not found:
        raise FileError(f"{shown(name)} holds no vocabulary of strings and their numbers")
    return found


NOTHING_KNOWN = Knowledge()


@dataclass(frozen=True)
class Options:
    """What an audit is asked for, and what is known beforehand."""

    knowledge: Knowledge = NOTHING_KNOWN  # what is assumed of every share
    inputs: bool = True  # whether inputs are attacked as well
    seconds: float = 30.0  # how long gradients are matched, where a model cannot be inverted
    views: bool = True  # whether the loss over the searched scalar is kept for the page
    normalisation: Normalisation | None = None  # how pixels became inputs, to show them as pixels
    tokens: TokenNames = NO_NAMES  # the words behind token ids, to show texts as words
    # Images with their classes, on which local training is simulated to estimate how large a part
    # of a client's data each class is.
    stand_ins: StandIns | None = None
