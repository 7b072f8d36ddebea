"""This module writes the page of a federation: one file, in the style of an audit's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softleak.atomic import write_text
from softleak.auditing.rates import Leak, State
from softleak.auditing.wording import class_name, listed
from softleak.integrations.flower.pictures import Picture, picture
from softleak.integrations.guarding.round_findings import ClientAudit, RoundAudit
from softleak.report.page import fill
from softleak.report.tiles import TILE_WORDS, Tile, tiles


@dataclass(frozen=True)
class PageLimits:
    """How much of a long run the page shows; the log has everything.

    Attributes:
        pictures: the number of pictures per run.
        rounds: the number of last rounds that are shown client by client.
    """

    pictures: int = 24
    rounds: int = 3


LIMITS = PageLimits()
GIVEN_AWAY = {  # what the sentence about a run says of each kind of leak
    Leak.LABEL: "gave away their exact label",
    Leak.INPUT: "gave away their image",
    Leak.COMPOSITION: "gave away which classes are in them",
}


@dataclass(frozen=True, eq=False)
class Federation:
    """One run of a federation.

    Attributes:
        title: the heading of the run.
        note: a sentence about the run.
        rounds: what was found in each round.
        pictures: the inputs as the server can see them.
        facts: names and values that compare the findings with the truth.
    """

    title: str
    note: str
    rounds: Sequence[RoundAudit]
    pictures: Sequence[Picture] = ()
    facts: Sequence[tuple[str, str]] = ()

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """Return the number of updates of all rounds in which a kind of leak is in this state."""
        return sum(audit.count(leak, state) for audit in self.rounds)

    @property
    def tiles(self) -> list[Tile]:
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
        return self.rounds[-LIMITS.rounds :]

    @property
    def refused(self) -> list[tuple[int, ClientAudit]]:
        """The updates that could not be audited, each with the number of its round."""
        every = ((audit.number, c) for audit in self.rounds for c in audit.clients)
        return [(number, client) for number, client in every if client.report is None]


def write_rounds(path: Path, rounds: Sequence[RoundAudit], names: Sequence[str] = ()) -> None:
    """Write the page of one run, either whole or not at all.

    Args:
        path: the file to write.
        rounds: what was found in each round.
        names: the names of the classes.
    """
    note = "The server computed this from nothing but the weights it sent and those that came back."
    pictures = [picture(audit.number, c, names) for audit in rounds for c in audit.audited]
    shown = [p for p in pictures if p.found][: LIMITS.pictures]
    run = Federation("What the server can see", note, rounds, shown)
    write_federations(path, headline(run), [run], names)


def write_federations(
    path: Path, title: str, runs: Sequence[Federation], names: Sequence[str] = ()
) -> None:
    """Write the page of some runs, one below the other.

    Args:
        path: the file to write.
        title: the heading of the page.
        runs: the runs.
        names: the names of the classes.
    """
    text = fill(
        "rounds.html", "softleak.integrations.flower", title=title, runs=runs,
        leaks={leak: what for leak, (what, _) in TILE_WORDS.items()},
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
    left = [TILE_WORDS[k][0] for k, n in tried.items() if not n]
    return f"{said}{f' Not attacked: {listed(left)}.' if left else ''}".strip()
