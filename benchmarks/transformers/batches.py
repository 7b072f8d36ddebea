"""Batches of texts whose model has frozen embeddings."""

from __future__ import annotations

import torch

import softleak as sl
from benchmarks.transformers.classifiers import TextModel
from benchmarks.transformers.sentences import sentences
from benchmarks.transformers.text_cells import built

LONGEST_IN_BATCH = 25  # four of these have fewer tokens than the model is wide
BATCH_CLASSES = 20
BATCH_HEADER = (
    "| model | texts in a batch | whole texts | tokens in place | wrong texts "
    "| batches explained |\n|---|---|---|---|---|---|"
)


def batch_line(kind: TextModel, size: int, count: int) -> str:
    """Return a row of the table: how many texts of ``count`` batches are found whole."""
    model = built(kind, BATCH_CLASSES, trained=False, frozen=True)
    short = [ids for ids in sentences(kind.pieces) if len(ids) <= LONGEST_IN_BATCH]
    generator = torch.Generator().manual_seed(1)
    whole = right = total = wrong = explained = 0
    for _ in range(count):
        drawn = [short[i] for i in torch.randperm(len(short), generator=generator)[:size].tolist()]
        length = max(map(len, drawn))
        padding = 0 if kind.pieces else 1
        padded = [ids + [padding] * (length - len(ids)) for ids in drawn]
        mask = [[1] * len(ids) + [0] * (length - len(ids)) for ids in drawn]
        x = {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)}
        y = torch.randperm(BATCH_CLASSES, generator=generator)[:size]
        share = sl.capture(model, x, y)
        texts = sl.invert(model, share, sl.recover_batch(model, share).samples).texts
        found = [list(text.tokens) for text in texts]
        explained += bool(texts) and all(text.explained for text in texts)
        whole += len([ids for ids in drawn if ids in found])
        wrong += len([ids for ids in found if ids not in drawn])
        total += sum(map(len, drawn))
        right += sum(max((_alike(ids, one) for one in found), default=0) for ids in drawn)
    return (
        f"| {kind.family}, frozen | {size} | {whole}/{size * count} | {100 * right / total:.1f} % "
        f"| {wrong} | {explained}/{count} |"
    )


def _alike(one: list[int], other: list[int | None]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))
