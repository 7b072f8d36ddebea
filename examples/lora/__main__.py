"""Audit what adapters of a text classifier give away: `python -m examples.lora [FOLDER]`.

It needs the extras `text` and `peft`. Low-rank adapters on query and value are trained for a few
steps, and saved as PEFT saves them. A client then sends their gradient for one sentence, which has
no more words than the ranks of the first layer together. The folder holds the adapters, the update,
the truth, the tokenizer and the page.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import softleak as sl
from examples.texts.classifier import CLASSES, make, tokenizer
from softleak.audit.metrics import Truth
from softleak.paper import data

STEPS, RATE, RANK = 10, 0.1, 8
VERSE = 5  # the first of the verses that the client may have
MOST_WORDS = 2 * RANK  # query and value read the same vectors


def main() -> None:
    """Train adapters, write the update of one client, and audit it."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "lora-audit")
    folder.mkdir(parents=True, exist_ok=True)
    peft: Any = importlib.import_module("peft")
    words, model = tokenizer(), make()
    words.save(str(folder / "tokenizer.json"))
    config = peft.LoraConfig(r=RANK, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = peft.get_peft_model(model, config).eval()
    encoded = [torch.tensor(words.encode(verse).ids) for verse in data.verses()]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=RATE)
    for step in range(STEPS):
        label = torch.tensor([step % len(CLASSES)])
        loss = model(input_ids=encoded[100 + step][None], labels=label).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder / "adapters")
    ids = next(one for one in encoded[VERSE:] if 8 <= len(one) <= MOST_WORDS)
    share = sl.capture(model, {"input_ids": ids}, 1)
    share.save(folder / "update.safetensors")
    Truth(torch.eye(len(CLASSES))[1], ids).save(folder / "truth.safetensors")
    command = [
        "audit", "--model", "examples.texts.classifier:make",
        "--weights", str(folder / "adapters"), "--share", str(folder / "update.safetensors"),
        "--truth", str(folder / "truth.safetensors"),
        "--tokenizer", str(folder / "tokenizer.json"), "--out", str(folder / "page"),
    ]  # fmt: skip
    print("softleak " + " ".join(command), flush=True)
    raise SystemExit(subprocess.call([sys.executable, "-m", "softleak", *command]))


if __name__ == "__main__":
    main()
