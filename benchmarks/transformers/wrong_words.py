"""Try to make softleak call a wrong word certain: random models, texts and changed updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

import softleak as sl
from benchmarks.transformers.strangers import CLASSES, WAYS, Way, stranger, texts
from benchmarks.transformers.text_cells import made_label
from softleak.core.errors import SoftleakError
from softleak.inversion.results import Certainty, Text

WRONG_HEADER = (
    "| update | tries | texts read | words certain in their place | of these wrong "
    "| words said to occur | of these wrong | tracebacks |\n|---|---|---|---|---|---|---|---|"
)


@dataclass
class Tally:
    """What was claimed of the texts behind one kind of update, and how much of it was wrong."""

    way: str
    tries: int = 0
    read: int = 0
    certain: int = 0
    wrong: int = 0
    words: int = 0
    absent: int = 0
    tracebacks: int = 0
    cases: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """Return a row of the table in docs/transformers.md."""
        return (
            f"| {self.way} | {self.tries} | {self.read} | {self.certain:,} | {self.wrong} "
            f"| {self.words:,} | {self.absent} | {self.tracebacks} |"
        )

    def judge(self, text: Text, ids: torch.Tensor, case: str) -> None:
        """Count the claims of a text, and those that none of the true texts (B, L) bears out."""
        self.read += 1
        sure = [p for p in text.places if p.certainty is Certainty.CERTAIN]
        wrong = sum(not _stands(p.position, p.token, ids) for p in sure)
        absent = len(set(text.words) - set(ids.flatten().tolist()))
        self.certain, self.wrong = self.certain + len(sure), self.wrong + wrong
        self.words, self.absent = self.words + len(text.words), self.absent + absent
        if wrong or absent:
            self.cases.append(f"{case}: {wrong} wrong places, {absent} absent words")


def tallies(count: int, seed: int) -> Iterator[Tally]:
    """Yield the tally of each kind of update over this many random cases."""
    for name, way in WAYS.items():
        tally = Tally(name)
        for number in range(count):
            _tried(way, tally, seed + 1000 * number)
        yield tally


def _tried(way: Way, tally: Tally, seed: int) -> None:
    """Make a model, texts and their update from a seed, and read it."""
    generator = torch.Generator().manual_seed(seed)
    family, made, words = stranger(generator)
    model = way.rebuild(made).eval()
    x = texts(way.texts, words, generator)
    labels = torch.stack([made_label("Dirichlet", CLASSES, generator) for _ in range(way.texts)])
    tally.tries += 1
    try:
        share = (way.client or sl.Client()).share(model, x, labels)
        sent = way.change(model, share, generator)
        text = sl.invert(model, sent, sl.recover_label(model, sent)).text
    except SoftleakError:
        return  # a clear refusal
    except Exception as error:
        tally.tracebacks += 1
        tally.cases.append(f"{family}, seed {seed}: {error!r}")
        return
    if text is not None:
        tally.judge(text, x["input_ids"], f"{family}, seed {seed}")


def _stands(position: int, token: int | None, ids: torch.Tensor) -> bool:
    """Return whether each text has this token at this place: a place of several is one claim."""
    return position < ids.shape[1] and set(ids[:, position].tolist()) == {token}
