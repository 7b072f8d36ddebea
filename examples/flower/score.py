"""What the server saw compared with the truth, which is read here and nowhere before."""

from __future__ import annotations

from dataclasses import dataclass

from examples.flower.app import Run
from examples.flower.settings import NORM
from examples.judging import exact, guess
from softleak.audit.metrics import psnr
from softleak.audit.report import LEAK_RECOGNISABLE
from softleak.guard.flower.monitor import Picture, picture
from softleak.paper import data


@dataclass(frozen=True)
class Score:
    """One run in numbers.

    Attributes:
        updates: the number of updates that were audited.
        labels: the number of labels that were called unique and are right.
        classes: the number of updates whose class was named rightly, with or without proof.
        attacked: the number of images that were attacked.
        images: the number of images that came back at 20 dB or better.
        worst_psnr: the lowest PSNR of an attacked image in dB.
        best_psnr: the highest PSNR of an attacked image in dB.
        bound: the class accuracy that the guards state as the most to expect; None without guards.
        loss: the loss on the clients' images before and after the run.
        held_out: the loss on other images before and after the run.
        seconds: the time of all rounds.
        monitor: the part of that time that was spent in the monitor.
    """

    updates: int
    labels: int
    classes: int
    attacked: int
    images: int
    worst_psnr: float
    best_psnr: float
    bound: float | None
    loss: tuple[float, float]
    held_out: tuple[float, float]
    seconds: float
    monitor: float

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The names and values that the page and the terminal show."""
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
    """Compare every update of a run with the image behind it; return the score and pictures."""
    labels, classes, quality, pictures = 0, 0, [], []
    names, truth = data.embedded().class_names, run.settings.images()
    rounds = run.monitor.rounds if run.monitor else []
    updates = [(audit.number, client) for audit in rounds for client in audit.audited]
    for number, client in updates:
        x, y = (part[run.partitions[client.node]] for part in truth)
        labels += exact(client, int(y))
        classes += guess(client) == int(y)
        report = client.report
        if report is not None and report.input.seconds:
            true, found = NORM.invert(x), report.input.pixels
            quality.append(float("-inf") if found is None else psnr(found, true))
            pictures.append(picture(number, client, names, true))
    seen = sum(dB >= LEAK_RECOGNISABLE for dB in quality)
    losses = (_ends(run, "loss"), _ends(run, "loss-held-out"))
    times = (run.clock[-1] - run.clock[0], sum(run.monitor.seconds.values()) if run.monitor else 0)
    found_score = Score(
        len(updates), labels, classes, len(quality), seen, min(quality), max(quality),
        _stated(run), *losses, *times,
    )  # fmt: skip
    return found_score, pictures


def _stated(run: Run) -> float | None:
    """Return the mean of the bounds that the guards put into their replies."""
    told = [m.get("guard-class-bound") for m in run.result.train_metrics_clientapp.values()]
    bounds = [float(str(bound)) for bound in told if bound is not None]
    return sum(bounds) / len(bounds) if bounds else None


def _ends(run: Run, name: str) -> tuple[float, float]:
    """Return a loss before the first round and after the last."""
    measured = [float(str(m[name])) for m in run.result.evaluate_metrics_serverapp.values()]
    return measured[0], measured[-1]
