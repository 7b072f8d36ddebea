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
    loss: tuple[float, float]  # on the clients' images, before and after
    held_out: tuple[float, float]
    seconds: float  # of all rounds
    monitor: float  # of them in the monitor

    @property
    def facts(self) -> list[tuple[str, str]]:
        """For the page and the terminal."""
        said = [
            ("exact labels that are right", f"{self.labels} of {self.updates}"),
            ("right class named, sure or not", f"{self.classes} of {self.updates}"),
            ("images at 20 dB or better", f"{self.images} of {self.attacked} attacked"),
            ("their PSNR", f"{self.worst_psnr:.1f} to {self.best_psnr:.1f} dB"),
            ("loss on the clients' images", "{:.3f} before, {:.3f} after".format(*self.loss)),
            ("loss on other images", "{:.3f} before, {:.3f} after".format(*self.held_out)),
            (
                "of the rounds' time in the monitor",
                f"{self.monitor:.2f} of {self.seconds:.1f} s ({self.monitor / self.seconds:.1%})",
            ),
        ]
        if self.bound is not None:
            stated = f"{self.bound:.0%} (95 %, this attack)"
            said.insert(2, ("class accuracy the guards state, at most", stated))
        return said


def score(run: Run) -> tuple[Score, list[Picture]]:
    """Compare every update of a run with the image behind it."""
    labels, classes, quality, pictures = 0, 0, [], []
    names, truth = data.embedded().class_names, run.settings.images()
    rounds = run.monitor.rounds if run.monitor else []
    updates = [(audit.number, client) for audit in rounds for client in audit.audited]
    for number, client in updates:
        x, y = (part[run.partitions[client.node]] for part in truth)
        labels += _exact(client, int(y))
        classes += _guess(client) == int(y)
        report = client.report
        if report is not None and report.input.seconds:
            true, found = NORM.invert(x), report.input.pixels
            quality.append(float("-inf") if found is None else psnr(found, true))
            pictures.append(picture(number, client, names, true))
    seen = sum(dB >= RECOGNISABLE for dB in quality)
    losses = (_ends(run, "loss"), _ends(run, "loss-held-out"))
    times = (run.clock[-1] - run.clock[0], sum(run.monitor.seconds.values()) if run.monitor else 0)
    found_score = Score(
        len(updates), labels, classes, len(quality), seen, min(quality), max(quality),
        _stated(run), *losses, *times,
    )  # fmt: skip
    return found_score, pictures


def _stated(run: Run) -> float | None:
    """The mean of the bounds the guards put into their replies."""
    told = [m.get("guard-class-bound") for m in run.result.train_metrics_clientapp.values()]
    bounds = [float(str(bound)) for bound in told if bound is not None]
    return sum(bounds) / len(bounds) if bounds else None


def _exact(client: ClientAudit, true: int) -> bool:
    """Whether the label was proved, and is the true one: one-hot here."""
    recovery = client.report.label.recovery if client.report else None
    if recovery is None or recovery.label is None or recovery.status.name != "UNIQUE":
        return False
    return float(recovery.label[true]) > 0.99


def _guess(client: ClientAudit) -> int | None:
    return client.report.label.recovery.class_index if client.report else None


def _ends(run: Run, name: str) -> tuple[float, float]:
    """A loss before the first round and after the last."""
    measured = [float(str(m[name])) for m in run.result.evaluate_metrics_serverapp.values()]
    return measured[0], measured[-1]
