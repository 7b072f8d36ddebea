"""What the server saw of each client, compared with the truth, which is read here only."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch
from nvflare.apis.dxo import DXO

from examples.flower.settings import NORM, Settings
from examples.judging import exact, guess
from examples.nvflare.job import FlareRun
from softleak.audit.metrics import psnr
from softleak.audit.report import LEAK_RECOGNISABLE
from softleak.core.errors import SoftleakError
from softleak.guard.auditor import Auditor, ClientUpdate, Question
from softleak.guard.nvflare import built, own_step


@dataclass
class ClientScore:
    """What the server has of the clients of one kind.

    Attributes:
        updates: the number of updates that arrived.
        dropped: the number of updates that did not leave the client.
        labels: the number of exact labels that are right.
        classes: the number of classes that are named rightly, sure or not.
        images: the number of images at 20 dB or better.
        quality: the PSNR of every image that was found in dB.
        seconds: the time that the filter took for each update.
        processor: the processor time that the filter took for each update.
        cosines: the cosine between what was sent and the update, as the filters say.
    """

    updates: int = 0
    dropped: int = 0
    labels: int = 0
    classes: int = 0
    images: int = 0
    quality: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)

    @property
    def words(self) -> str:
        """Return the score in a line."""
        said = (
            f"{self.updates} updates arrived, {self.dropped} dropped; exact labels {self.labels}, "
            f"right classes {self.classes}, images at 20 dB or better {self.images}"
        )
        if self.quality:
            said += f" (PSNR {min(self.quality):.1f} to {max(self.quality):.1f} dB)"
        if self.seconds:
            said += (
                f"; the filter took {median(self.seconds):.2f} s per update (median), "
                f"{min(self.processor):.2f} to {max(self.processor):.2f} s of processor time; "
                f"cosine to the update {min(self.cosines):.3f} to {max(self.cosines):.3f}"
            )
        return said


def score(run: FlareRun, seconds: float = 0.0) -> dict[str, ClientScore]:
    """Attack all that the server saw, and return the score of each kind of clients.

    Args:
        run: the federation.
        seconds: the time for matching the gradients of an image that cannot be computed.
    """
    found: dict[str, ClientScore] = defaultdict(ClientScore)
    model = built(run.model, {"size": run.size})
    auditor = Auditor(model, Question(1, (3, run.size, run.size), NORM, seconds))
    x, y = Settings(clients=len(run.kinds), size=run.size).images()
    for number in range(run.rounds):
        for client, kind in enumerate(run.kinds):
            stem = run.seen / f"{number}-site-{client + 1}"
            one = found[kind]
            arrived = stem.with_name(f"{stem.name}-in.npz")
            one.dropped += not arrived.exists()
            if not arrived.exists():
                continue
            one.updates += 1
            state = {n: torch.as_tensor(a) for n, a in np.load(f"{stem}-out.npz").items()}
            try:
                dxo = DXO(run.data_kind, dict(np.load(arrived)))
                share = own_step(state, dxo, run.lr).share
            except SoftleakError:
                continue
            sent = ClientUpdate(client, share, run.lr, received=state)
            audit = auditor.audit(number, [sent], inputs=1)
            (finding,) = audit.clients
            one.labels += exact(finding, int(y[client]))
            one.classes += guess(finding) == int(y[client])
            pixels = finding.report.input.pixels if finding.report else None
            quality = float("-inf") if pixels is None else psnr(pixels, NORM.invert(x[client]))
            one.quality += [] if pixels is None else [quality]
            one.images += quality >= LEAK_RECOGNISABLE
    for name, kind, value in _numbers(run):
        one = found[kind]
        kept = {
            "guard-seconds": one.seconds, "guard-processor-seconds": one.processor,
            "guard-cosine": one.cosines,
        }  # fmt: skip
        if name in kept:
            kept[name].append(value)
    return dict(found)


def _numbers(run: FlareRun) -> Iterable[tuple[str, str, float]]:
    """Yield the numbers of the event stream: their name, the kind of client, their value."""
    path = run.file("metrics.jsonl")
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        said = json.loads(line)
        number = int(said["client"].rpartition("-")[2]) - 1
        yield said["name"], run.kinds[number], said["value"]
