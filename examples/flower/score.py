"""What the server saw against the truth, which is read here and nowhere before."""

from __future__ import annotations

from dataclasses import dataclass

from examples.flower.app import Run
from examples.flower.settings import NORM
from softleak import data
from softleak.audit.findings import RECOGNISABLE
from softleak.integrations.flower import ClientAudit
from softleak.integrations.flower.page import Picture, picture
from softleak.metrics import psnr


@dataclass(frozen=True)
class Score:
    """One run in numbers."""

    updates: int
    labels: int  # exact and right
    classes: int  # right, sure or not
    attacked: int  # images
    images: int  # at 20 dB or better
    worst_psnr: float
    best_psnr: float
    bound: float | None  # of the class accuracy, as the guards state it
    loss: tuple[float, float]  # on held-out images, before and after
    monitor: float  # seconds of all rounds

    @property
    def facts(self) -> list[tuple[str, str]]:
        """For the page and the terminal."""
        said = [
            ("exact labels that are right", f"{self.labels} of {self.updates}"),
            ("right class named, sure or not", f"{self.classes} of {self.updates}"),
            ("images at 20 dB or better", f"{self.images} of {self.attacked} attacked"),
            ("their PSNR", f"{self.worst_psnr:.1f} to {self.best_psnr:.1f} dB"),
            ("loss on held-out images", f"{self.loss[0]:.3f} before, {self.loss[1]:.3f} after"),
        ]
        if self.bound is not None:
            stated = f"{self.bound:.0%} (95 %, this attack)"
            said.insert(2, ("class accuracy the guards state, at most", stated))
        return said


def score(run: Run) -> tuple[Score, list[Picture]]:
    """Compare every update of a run with the image behind it."""
    labels, classes, quality, pictures = 0, 0, [], []
    names = data.embedded().class_names
    updates = [
        (a.number, c) for a in (run.monitor.rounds if run.monitor else ()) for c in a.audited
    ]
    for number, client in updates:
        x, y = run.settings.sample(run.partitions[client.node], number)
        labels += _exact(client, int(y))
        classes += _guess(client) == int(y)
        report = client.report
        if report is None or not report.input.seconds:
            continue
        true, found = NORM.invert(x), report.input.pixels
        quality.append(float("-inf") if found is None else psnr(found, true))
        pictures.append(picture(number, client, names, true))
    losses = [float(str(m["loss"])) for m in run.result.evaluate_metrics_serverapp.values()]
    told = [m.get("guard-class-bound") for m in run.result.train_metrics_clientapp.values()]
    bounds = [float(str(bound)) for bound in told if bound is not None]
    seconds = sum(run.monitor.seconds.values()) if run.monitor else 0.0
    found_score = Score(
        len(updates), labels, classes, len(quality),
        sum(q >= RECOGNISABLE for q in quality), min(quality), max(quality),
        sum(bounds) / len(bounds) if bounds else None, (losses[0], losses[-1]), seconds,
    )  # fmt: skip
    return found_score, pictures


def _exact(client: ClientAudit, true: int) -> bool:
    """Whether the label was proved, and is the true one: one-hot here."""
    recovery = client.report.label.recovery if client.report else None
    if recovery is None or recovery.label is None or recovery.status.name != "UNIQUE":
        return False
    return float(recovery.label[true]) > 0.99


def _guess(client: ClientAudit) -> int | None:
    return client.report.label.recovery.class_index if client.report else None
