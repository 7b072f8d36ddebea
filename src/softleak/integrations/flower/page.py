"""The round-by-round page: one self-contained file, in the style of an audit's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from softleak._version import __version__
from softleak.atomic import write_text
from softleak.audit.findings import Method
from softleak.audit.rates import Leak, State
from softleak.audit.words import class_name, listed
from softleak.integrations.flower.findings import ClientAudit, RoundAudit
from softleak.report.page import asset, environment
from softleak.report.png import data_uri, is_picture

SHOWN = 24  # pictures of a federation
TILES = {  # what each kind of leak is called, and when it counts
    Leak.LABEL: ("exact label", "one label explains the update"),
    Leak.CLASS: ("class", "claimed with proof, or at least 90 %"),
    Leak.FEATURE: ("feature", "the input of the last layer"),
    Leak.INPUT: ("image", "computed, and recognisable: 20 dB or better"),
    Leak.COMPOSITION: ("class composition", "classes proved to be among the labels"),
}
GIVEN_AWAY = {  # for the sentence about a run
    Leak.LABEL: "gave away their exact label",
    Leak.INPUT: "gave away their image",
    Leak.COMPOSITION: "gave away which classes are in them",
}
LATEST = 3  # rounds whose clients have a row each; the log has all


@dataclass(frozen=True)
class Picture:
    """What was computed of one client's input, and beside it the truth if somebody has it."""

    name: str
    label: str
    words: str
    found: str | None
    true: str | None = None


@dataclass(frozen=True, eq=False)
class Federation:
    """One run: its rounds, and pictures of what the server could see."""

    title: str
    note: str
    rounds: Sequence[RoundAudit]
    pictures: Sequence[Picture] = ()
    facts: Sequence[tuple[str, str]] = ()

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """How many updates of all rounds gave this away, or are in another state."""
        return sum(audit.count(leak, state) for audit in self.rounds)

    @property
    def tiles(self) -> list[tuple[int, int, str, str, int]]:
        """Of each kind of leak: updates that have it, all, what it is, and those not attacked."""
        if not self.audited:  # then nothing was attacked, which must not look like no leak
            every = max(sum(len(audit.clients) for audit in self.rounds), 1)
            return [(0, every, *TILES[k], every) for k in Leak]
        return [
            (self.count(k), self.audited, *TILES[k], self.count(k, State.NOT_ATTACKED))
            for k in Leak
        ]  # fmt: skip

    @property
    def audited(self) -> int:
        """Updates of all rounds that could be read."""
        return sum(len(audit.audited) for audit in self.rounds)

    @property
    def latest(self) -> Sequence[RoundAudit]:
        """The rounds that are shown client by client."""
        return self.rounds[-LATEST:]

    @property
    def refused(self) -> list[tuple[int, ClientAudit]]:
        """Updates that could not be audited, with their round."""
        every = ((audit.number, c) for audit in self.rounds for c in audit.clients)
        return [(number, client) for number, client in every if client.report is None]


def write_rounds(path: Path, rounds: Sequence[RoundAudit], names: Sequence[str] = ()) -> None:
    """Write the page of one run, whole or not at all."""
    note = "Computed by the server from the weights it sent and those that came back, alone."
    pictures = [picture(audit.number, c, names) for audit in rounds for c in audit.audited]
    shown = [p for p in pictures if p.found][:SHOWN]
    run = Federation("What the server can see", note, rounds, shown)
    write_federations(path, headline(run), [run], names)


def write_federations(
    path: Path, title: str, runs: Sequence[Federation], names: Sequence[str] = ()
) -> None:
    """Write the page of some runs, one below the other."""
    page = environment("softleak.integrations.flower").get_template("rounds.html")
    text = page.render(
        title=title, runs=runs, leaks={leak: TILES[leak][0] for leak in Leak},
        style=asset("page.css"), version=__version__,
        class_name=lambda index: class_name(index, names),
    )  # fmt: skip
    write_text(path, text)


def headline(run: Federation) -> str:
    """The run in a sentence."""
    if not run.audited:
        return "No update could be audited."
    tried = {k: run.audited - run.count(k, State.NOT_ATTACKED) for k in GIVEN_AWAY}
    parts = [
        f"{run.count(k)}{'' if n == run.audited else f' of the {n} attacked'} {GIVEN_AWAY[k]}"
        for k, n in tried.items() if n
    ]  # fmt: skip
    said = f"Of {run.audited} updates, {listed(parts)}." if parts else ""
    left = [TILES[k][0] for k, n in tried.items() if not n]
    return f"{said}{f' Not attacked: {listed(left)}.' if left else ''}".strip()


def picture(
    number: int, client: ClientAudit, names: Sequence[str], true: Tensor | None = None
) -> Picture:
    """One client's image as the server has it."""
    report = client.report
    if report is None:
        return Picture(f"round {number}", "not audited", client.reason, None)
    found, index = report.input.pixels, report.label.class_index
    shown = found is not None and is_picture(found)
    quality = report.input.psnr_predicted
    return Picture(
        f"round {number}, node {str(client.node)[-4:]}",
        "class not claimed" if index is None else class_name(index, names),
        f"{quality:.0f} dB predicted" if quality is not None and report.input.leaked
        else f"not attacked: {report.input.message}" if report.input.method is Method.NONE
        else "not determined: this attack did not succeed",
        data_uri(found) if found is not None and shown else None,
        data_uri(true) if true is not None and is_picture(true) else None,
    )  # fmt: skip
