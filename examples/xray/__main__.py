"""Audit what three hospitals give away of a patient: `python -m examples.xray [FOLDER]`.

Each computes the gradient of one image with ``BCEWithLogitsLoss`` on fourteen findings. One sends
it as it is, one smooths its labels, and one leaves out the bias of the last layer. The folder then
holds their updates, the truth and the page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import softleak as sl
from examples.xray.network import FINDINGS, SIZE, drawn, make, some_labels
from softleak.audit.metrics import Truth
from softleak.defenses import Withhold

SEED = 40  # of the patients, whom no training saw
SMOOTHED = 0.1
HOSPITALS = ("plain", "smoothed", "without-bias")


def main() -> None:
    """Write the updates of three hospitals, and audit them."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "xray-audit")
    for name in ("updates", "truth"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "findings.txt").write_text("\n".join(FINDINGS) + "\n")
    model, labels = make(), some_labels(len(HOSPITALS), SEED)
    torch.save(model.state_dict(), folder / "model.pt")
    images = drawn(labels, SEED)
    for name, x, y in zip(HOSPITALS, images, labels, strict=True):
        y = y * (1 - SMOOTHED) + SMOOTHED / 2 if name == "smoothed" else y
        share = sl.capture(model, x, y, loss="bce")
        sent = Withhold(("head.bias",))(share) if name == "without-bias" else share
        sent.save(folder / "updates" / f"{name}.safetensors")
        Truth(y, x).save(folder / "truth" / f"{name}.safetensors")
    command = [
        "audit", "--model", "examples.xray.network:XRayNet", "--weights", str(folder / "model.pt"),
        "--share", str(folder / "updates"), "--truth", str(folder / "truth"), "--kind", "gradient",
        "--loss", "bce", "--classes", str(folder / "findings.txt"),
        "--input-shape", f"1,{SIZE},{SIZE}", "--match-seconds", "0", "--fail-on", "label",
        "--out", str(folder / "page"),
    ]  # fmt: skip
    print("softleak " + " ".join(command), flush=True)
    raise SystemExit(subprocess.call([sys.executable, "-m", "softleak", *command]))


if __name__ == "__main__":
    main()
