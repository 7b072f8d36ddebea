"""Write the page of a federation: one file, in the style of an audit's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from softleak.audit.findings import Method
from softleak.audit.leaks import Leak
from softleak.core.vocabulary import State
from softleak.guard.auditor import ClientAudit, RoundAudit
from softleak.io.atomic import write_text
from softleak.present import page as png
from softleak.present.page import fill, tiles
from softleak.present.words import class_name, listed


@dataclass(frozen=True)
class Picture:
    """One client's input as the server can see it."""

    name: str  # the round and the node
    label: str  # the name of the class, or that none is claimed
    words: str  # how well the input was recovered
    found: str | None  # the recovered image as a data URI, if there is one
    true: str | None = None  # the true image as a data URI, if it is known


def picture(
    number: int, client: ClientAudit, names: Sequence[str], true: Tensor | None = None
) -> Picture:
    """Return one client's input as the server can see it, and the true one if it is known."""
    report = client.report
    if report is None:
        return Picture(f"round {number}", "not audited", client.reason, None)
    found, index = report.input.pixels, report.label.class_index
    quality = report.input.psnr_predicted
    return Picture(
        f"round {number}, node {str(client.node)[-4:]}",
        "class not claimed" if index is None else class_name(index, names),
        f"{quality:.0f} dB predicted" if quality is not None and report.input.leaked
        else f"not attacked: {report.input.message}" if report.input.method == Method.NONE
        else "not determined: this attack did not succeed",
        png.picture(found),
        png.picture(true),
    )  # fmt: skip


# How much of a long run the page shows; the log has everything.
LIMITS_PICTURES = 24  # the number of pictures per run
LIMITS_ROUNDS = 3  # the number of last rounds that are shown client by client


GIVEN_AWAY = {  # what the sentence about a run says of each kind of leak
    Leak.LABEL: "gave away their exact label",
    Leak.INPUT: "gave away their image",
    Leak.COMPOSITION: "gave away which classes are in them",
}


@dataclass(frozen=True, eq=False)
class Federation:
    """One run of a federation."""

    title: str
    note: str  # a sentence about the run
    rounds: Sequence[RoundAudit]
    pictures: Sequence[Picture] = ()  # the inputs as the server can see them
    facts: Sequence[tuple[str, str]] = ()  # names and values that compare findings with the truth

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """Return the number of updates of all rounds in which a kind of leak is in this state."""
        return sum(audit.count(leak, state) for audit in self.rounds)

    @property
    def tiles(self) -> list[dict[str, Any]]:
        """Return of each kind of leak how many updates have it, and how many were not attacked."""
        if self.audited:
            return tiles(self.count, self.audited)
        # Nothing was attacked, which must not look like no leak.
        every = max(sum(len(audit.clients) for audit in self.rounds), 1)
        return tiles(lambda _, state: every if state is State.NOT_ATTACKED else 0, every)

    @property
    def audited(self) -> int:
        """The number of updates of all rounds that could be read."""
        return sum(len(audit.audited) for audit in self.rounds)

    @property
    def latest(self) -> Sequence[RoundAudit]:
        """The last rounds, which are shown client by client."""
        return self.rounds[-LIMITS_ROUNDS:]

    @property
    def refused(self) -> list[tuple[int, ClientAudit]]:
        """The updates that could not be audited, each with the number of its round."""
        every = ((audit.number, c) for audit in self.rounds for c in audit.clients)
        return [(number, client) for number, client in every if client.report is None]


def write_rounds(path: Path, rounds: Sequence[RoundAudit], names: Sequence[str] = ()) -> None:
    """Write the page of one run, either whole or not at all."""
    note = "The server computed this from nothing but the weights it sent and those that came back."
    pictures = [picture(audit.number, c, names) for audit in rounds for c in audit.audited]
    shown = [p for p in pictures if p.found][:LIMITS_PICTURES]
    run = Federation("What the server can see", note, rounds, shown)
    write_federations(path, headline(run), [run], names)


def write_federations(
    path: Path, title: str, runs: Sequence[Federation], names: Sequence[str] = ()
) -> None:
    """Write the page of some runs, one below the other."""
    text = fill(
        "rounds.html", "softleak.guard.flower", title=title, runs=runs,
        leaks={leak: leak.short for leak in Leak},
        class_name=lambda index: class_name(index, names),
    )  # fmt: skip
    write_text(path, text)


def headline(run: Federation) -> str:
    """Return a run in a sentence or two."""
    if not run.audited:
        return "No update could be audited."
    tried = {k: run.audited - run.count(k, State.NOT_ATTACKED) for k in GIVEN_AWAY}
    parts = [
        f"{run.count(k)}{'' if n == run.audited else f' of the {n} attacked'} {GIVEN_AWAY[k]}"
        for k, n in tried.items() if n
    ]  # fmt: skip
    said = f"Of {run.audited} updates, {listed(parts)}." if parts else ""
    left = [k.short for k, n in tried.items() if not n]
    return f"{said}{f' Not attacked: {listed(left)}.' if left else ''}".strip()
