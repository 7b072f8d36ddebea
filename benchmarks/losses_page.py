"""The page of results under other losses, docs/results/losses.md, from the rows measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from softleak import __version__

PAGE = Path(__file__).parents[1] / "docs" / "results" / "losses.md"
Row = dict[str, Any]
SUMMED = ("shares", "exact", "unique", "wrong", "twins", "recoveries", "contradicted", "hundred")
CELL = ("what", "network", "trained", "loss", "outputs", "bias", "whole", "features")
NAMES = {"lenet": "LeNet", "resnet18": "ResNet18 (CIFAR)", "convnext": "ConvNeXt", "vit": "ViT"}
SIGNED = ("convnext", "vit")
HEADER = """# Results: losses

*Measured with softleak {version}, written on {day} by `python -m benchmarks.losses page`.*

What is read under which loss, and what it guarantees: [losses](../losses.md).

## One sample

`python -m benchmarks.losses labels --first F --shares N --data DIR --only NETWORK` on images of
CIFAR-100 and Flowers-17 in turn, at 32×32; each class has each of forty synthetic tags with a
probability of 0.3. ConvNeXt and ViT are Hugging Face's, small, from their configurations; "trained"
is {steps} steps of Adam. Labels are hard and smoothed in turn, and where more than the head is read
a third is arbitrary. *Exact* is an L1 error below 1e-3, and for the squared error a relative one
below 1e-4. *Wrong* is a UNIQUE label that is not exact.
"""
HUNTED = """`python -m benchmarks.losses hunt --first F --shares N` draws small networks, heads with
and without a bias, twelve losses (seven that softleak knows, with weights of classes, and focal,
tempered, Huber, Dice and multi-label margin), factors of 0.1, 1 and 7, weight decays of 0, 1e-6 and
5e-4, and hard, smoothed and arbitrary labels. It asks for the label with the loss not stated,
stated rightly and stated wrongly.
"""


def page(rows: Path) -> None:
    """Write the page from all rows of a file."""
    found = merged(json.loads(line) for line in rows.read_text().splitlines())
    labels = [row for row in found if row["what"] == "labels"]
    parts = [HEADER.format(version=__version__, day=date.today().isoformat(), steps=20)]
    parts += [*_summary(labels), *_cells(labels), *_hunt(found), *_inputs(found)]
    PAGE.write_text("\n".join(parts) + "\n")


def merged(rows: Iterable[Row]) -> list[Row]:
    """Return a row for each cell: pieces of other shares are added up, and none counts twice."""
    pieces: dict[tuple[Any, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        pieces[tuple(row.get(key) for key in CELL)][row["first"]] = row
    found = []
    for cell, each in pieces.items():
        whole: Row = dict(zip(CELL, cell, strict=True))
        for key in SUMMED:
            whole[key] = sum(one.get(key, 0) for one in each.values())
        whole["worst"] = max(one.get("worst", 0.0) for one in each.values())
        whole["least"] = min(one.get("least", float("inf")) for one in each.values())
        whole["kept"] = [text for one in each.values() for text in one.get("kept", [])]
        found.append(whole)
    return found


def _part(count: int, of: int) -> str:
    return f"{count:,} of {of:,} ({count / of:.1%})" if of else "not measured"


def _summary(labels: list[Row]) -> Iterator[str]:
    bce = [r for r in labels if r["loss"] == "bce" and r["outputs"] > 1]
    kinds = {
        "several labels, with evidence or a bias, exact": (
            [r for r in bce if r["whole"]], "exact"),
        "several labels, the head alone, features never negative, exact": (
            [r for r in bce if not r["whole"] and r["network"] not in SIGNED], "exact"),
        "several labels, the head alone, signed features, no bias: exactly the two twins": (
            [r for r in bce if not r["whole"] and r["network"] in SIGNED and not r["bias"]],
            "twins"),
        "one output with a bias, binary cross-entropy, exact": (
            [r for r in labels if r["loss"] == "bce" and r["outputs"] == 1], "exact"),
        "squared error with a bias, targets to 1e-4": (
            [r for r in labels if r["loss"] == "mse"], "exact"),
    }  # fmt: skip
    yield "| setting | shares | worst cell |\n|---|---|---|"
    for name, (rows, key) in kinds.items():
        shares, count = sum(r["shares"] for r in rows), sum(r[key] for r in rows)
        worst = min((r[key] / r["shares"] for r in rows), default=0.0)
        yield f"| {name} | {_part(count, shares)} | {worst:.0%} |"
    wrong, every = sum(r["wrong"] for r in labels), sum(r["unique"] for r in labels)
    yield f"\nOf {every:,} UNIQUE labels {wrong} are wrong.\n"


def _cells(labels: list[Row]) -> Iterator[str]:
    yield "| network | loss | outputs | bias | read | shares | exact | twins | UNIQUE | wrong |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for r in labels:
        name = f"{NAMES[r['network']]}, {'trained' if r['trained'] else 'untrained'}"
        read = "all layers" if r["whole"] else "the head alone"
        bias = "yes" if r["bias"] else "no"
        counts = f"{r['shares']} | {r['exact']} | {r['twins']} | {r['unique']} | {r['wrong']} |"
        yield f"| {name} | {r['loss']} | {r['outputs']} | {bias} | {read} | {counts}"
    yield ""


def _hunt(found: list[Row]) -> Iterator[str]:
    yield "## Wrong proofs\n"
    if all(row["what"] != "hunt" for row in found):
        yield "Not measured yet.\n"
    for r in (row for row in found if row["what"] == "hunt"):
        yield HUNTED
        yield (
            f"Of {r['recoveries']:,} recoveries {r['unique']:,} are UNIQUE, and {r['wrong']} of "
            f"these are wrong. In {r['contradicted']:,} the numbers contradict something.\n"
        )
        yield from (f"- {text}" for text in r["kept"])


def _inputs(found: list[Row]) -> Iterator[str]:
    rows = [row for row in found if row["what"] == "inputs"]
    if not rows:
        return
    yield "## Features of a patient\n"
    yield "`python -m benchmarks.losses inputs --shares N`: one sample, three linear layers.\n"
    yield "| features | loss | to 100 dB | the worst |\n|---|---|---|---|"
    for r in rows:
        hundred = _part(r["hundred"], r["shares"])
        yield f"| {r['features']} | {r['loss']} | {hundred} | {r['least']:.0f} dB |"
