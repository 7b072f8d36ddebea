"""Audit what three clients give away of their sentences: `python -m examples.texts [FOLDER]`.

It needs the extra `text`. One client sends its gradient as it is, one adds noise, and one freezes
the embeddings, which many take for a defence. The folder then holds their updates, the truth, the
tokenizer and the page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import softleak as sl
from examples.texts.classifier import CLASSES, make, tokenizer
from softleak.audit.metrics import Truth
from softleak.defenses import Defense, GaussianNoise, Withhold
from softleak.paper import data

TABLES = tuple(
    f"bert.embeddings.{name}.weight"
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
)
CLIENTS: dict[str, tuple[int, Defense | None]] = {
    "plain": (4, None),
    "noise": (90, GaussianNoise(1e-4, 1)),
    "frozen": (310, Withhold(TABLES)),
}


def main() -> None:
    """Write the updates of three clients, and audit them."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "text-audit")
    for name in ("updates", "truth"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    model, words = make(), tokenizer()
    words.save(str(folder / "tokenizer.json"))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    for number, (name, (verse, defence)) in enumerate(CLIENTS.items()):
        ids = torch.tensor(words.encode(data.verses()[verse]).ids)
        y = torch.full((len(CLASSES),), 0.1 / 3)
        y[number] = 0.9
        share = sl.capture(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, y)
        sent = share if defence is None else defence(share)
        sent.save(folder / "updates" / f"{name}.safetensors")
        Truth(y, ids).save(folder / "truth" / f"{name}.safetensors")
    command = [
        "audit", "--model", "examples.texts.classifier:make",
        "--share", str(folder / "updates"), "--truth", str(folder / "truth"),
        "--tokenizer", str(folder / "tokenizer.json"), "--classes", str(folder / "classes.txt"),
        "--out", str(folder / "page"),
    ]  # fmt: skip
    print("softleak " + " ".join(command), flush=True)
    raise SystemExit(subprocess.call([sys.executable, "-m", "softleak", *command]))


if __name__ == "__main__":
    main()
