"""Audit every network with every kind of update."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.adversary.stranger import Stranger
from benchmarks.matrix.client import Client
from benchmarks.matrix.judge import (
    contradicted,
    falsely_green,
    green_tiles,
    input_psnr,
    missed,
    why_contradicted,
    wrong_claims,
)
from benchmarks.matrix.updates import Kind, Sent
from softleak.audit import Audit, AuditReport, NamedShare, State, audit_shares, prepared
from softleak.audit.report import Refusal
from softleak.cli.audit import exit_code
from softleak.core.errors import SoftleakError
from softleak.core.subject import Subject
from softleak.present.words import headline


@dataclass(frozen=True)
class Cell:
    """What the audit said of one update of one network, and how that compares with the truth.

    Attributes:
        network: the name of the network.
        kind: the name of the kind of update.
        word: what came of it, in a word or two.
        code: the exit code of the command, with nothing named to fail on.
        states: the name of the state of each kind of leak, in the order of ``Leak``.
        wrong: the claims that are wrong; a traceback is one.
        green: why an all-clear is none, if there was one.
        tiles: the leaks that are shown in green, beside others that leaked, although they leak.
        missed: the leaks that one line of arithmetic reads and that were not attacked.
        said: the headline of the report, and what the input is said and known to be.
        seconds: the processor time of the audit.
    """

    network: str
    kind: str
    word: str
    code: int
    states: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    tiles: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    said: str = ""
    seconds: float = 0.0


def cells(network: Stranger, kinds: Sequence[Kind], row: int = 0) -> Iterator[Cell]:
    """Yield one column of the matrix; its number and that of the kind decide which data is drawn.

    An exception that is no refusal is a wrong claim: the command would end in a traceback.
    """
    client = Client(network)
    subject = Subject.of(client.model, client.layout)
    for number, kind in enumerate(kinds):
        sent = kind.make(client, row + number)
        start = time.process_time()
        try:
            report = audited(subject, sent)
        except SoftleakError as error:
            code = exit_code(Audit((), (Refusal("update", str(error)),)), frozenset())
            wrong = ("refusal",) if sent.sound else ()
            yield Cell(network.name, kind.name, "WRONG" if wrong else "refused", code, wrong=wrong,
                       said=str(error))  # fmt: skip
            continue
        except Exception as error:  # what the command would show as a traceback
            wrong = (f"traceback ({type(error).__name__})",)
            yield Cell(network.name, kind.name, "WRONG", 1, wrong=wrong, said=repr(error))
            continue
        yield _judged(subject, report, sent, network, kind, time.process_time() - start)


def _judged(
    subject: Subject, report: AuditReport, sent: Sent, network: Stranger, kind: Kind, seconds: float
) -> Cell:
    code = int(exit_code(Audit((report,)), frozenset()))
    wrong = wrong_claims(subject, report, sent)
    green = falsely_green(subject, report, sent, code)
    tiles = () if green else green_tiles(subject, report, sent)
    grey = () if green else missed(subject, report, sent)
    mark = "*" * bool(tiles) + "°" * bool(grey)
    word = "WRONG" if wrong else "GREEN" if green else _word(report) + mark
    states = tuple(state.name for state in report.states.values())
    said = "; ".join([headline(report), *why_contradicted(report)])
    image, told = input_psnr(subject, report, sent), report.input.psnr_predicted
    if image is not None and told is not None:
        said += f" ({told:.0f} dB predicted, {image:.0f} true)"
    return Cell(
        network.name, kind.name, word, code, states, wrong, green, tiles, grey, said, seconds
    )


def _word(report: AuditReport) -> str:
    """Return what came of an audit whose claims are right."""
    found, states = report.input, set(report.states.values())
    words = found.text is not None and found.text.certain
    proved = report.label.proved == "UNIQUE" or report.samples.proved or words
    if proved or (found.method.exact and found.leaked):
        return "proved"
    if State.LEAKED in states:
        return "leaked"
    if contradicted(report):
        return "contradicted"
    if report.label.proved != "NOTHING" or found.doubtful:
        return "candidate"
    return "no success" if State.NO_SUCCESS in states else "not attacked"


def audited(subject: Subject, sent: Sent) -> AuditReport:
    """Return the report of one update; the audit is not given the truth."""
    share = prepared(subject, sent.share, sent.options)
    return next(audit_shares(subject, [NamedShare("update", share)], sent.options))
