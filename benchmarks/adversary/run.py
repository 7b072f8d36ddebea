"""The suite: every stranger, every way, as many recoveries as asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from multiprocessing import get_context

import torch

import softleak as sl
from benchmarks.adversary.ask import Answer, Prepared, answers, limited
from benchmarks.adversary.judge import Outcome, false_alarm, judge, label_error
from benchmarks.adversary.stranger import number_of
from benchmarks.adversary.subject import Case, Plan, Subject
from benchmarks.adversary.zoo import ZOO

REFUSED = 16  # recoveries tried on a model that the library refuses
LAST_BITS = 1e-12  # L1
BATCH_PART = 0.01  # of the stated error: what the order of sums in a batch may change
AGAIN = 0.12  # of the shares are asked about once more, alone and plainly


class Alone(Enum):
    """How the answer for a share alone compares with that among others."""

    SAME = "the same to the last bit"
    BITS = "the same to within a hundredth of the stated error"
    OTHER = "another answer"


@dataclass(frozen=True)
class Record:
    """One recovery and what became of it."""

    stranger: str
    group: str
    way: str
    made: str  # the group of the way: how the share was made
    kind: str
    number: int
    question: str
    outcome: Outcome
    error: float = float("nan")  # L1, of the label
    bound: float = float("nan")
    words: str = ""
    seconds: float = 0.0
    alarm: bool = False  # a clean share was called altered
    clean: bool = False
    alone: Alone | None = None  # if it was asked for
    covered: float | None = None  # the part of the true label inside its interval of 90 %


def run(
    zoo: Sequence[str], recoveries: int, seed: int = 0, jobs: int = 1
) -> Iterator[list[Record]]:
    """Yield the records of each stranger; what a refused one leaves goes to the others."""
    waiting = list(reversed(zoo))
    done = 0
    running: dict[Future[list[Record]], int] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        while waiting or running:
            while waiting and len(running) < jobs:
                left = recoveries - done - sum(running.values())
                quota = -(-left // len(waiting))
                running[pool.submit(examine_stranger, waiting.pop(), seed, quota)] = quota
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                records = future.result()
                done += len(records)
                yield records


def examine_stranger(name: str, seed: int, quota: int) -> list[Record]:
    """Return the records of one stranger, in a process that computes with one thread."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    subject = Subject(next(one for one in ZOO if one.name == name), seed)
    return examine(subject, subject.plans(), quota)


def examine(subject: Subject, plans: Iterable[Plan], quota: int) -> list[Record]:
    """Make shares of one stranger, ask for their labels, and judge the answers."""
    prepared = Prepared.of(subject.model, subject.stranger.shape)
    most = subject.stranger.most if prepared.head is not None else REFUSED
    cases = list(islice(_cases(subject, plans), min(quota, most)))
    return [
        _record(subject, case, answer, _alone(subject, prepared, case, answer))
        for case, answer in answers(prepared, cases)
    ]


def _cases(subject: Subject, plans: Iterable[Plan]) -> Iterator[Case]:
    """The cases of plans, without those that torch itself cannot compute (LSTM under autocast)."""
    for plan in plans:
        try:
            yield subject.case(plan)
        except RuntimeError as error:
            if "primitive" not in str(error) and "not implemented" not in str(error):
                raise


def _alone(subject: Subject, prepared: Prepared, case: Case, answer: Answer) -> Alone | None:
    """What the plain call for this share alone says, asked for some of them."""
    if prepared.head is None or answer.recovery is None:
        return None
    own = number_of(subject.seed, subject.stranger.name, case.plan.way.name, case.plan.number)
    if own % 1000 >= 1000 * AGAIN:
        return None
    try:
        with limited(60.0):
            return _compare(answer.recovery, prepared.ask_plainly(case))
    except Exception:
        return Alone.OTHER


def _compare(one: sl.Recovery, other: sl.Recovery) -> Alone:
    if one.status is not other.status or (one.label is None) != (other.label is None):
        return Alone.OTHER
    if one.label is None or other.label is None:
        return Alone.SAME
    if torch.equal(one.label, other.label) and one.error == other.error:
        return Alone.SAME
    bound = min(one.error, other.error)
    apart = float((one.label - other.label).abs().sum())
    near = apart <= max(LAST_BITS, BATCH_PART * bound)
    near &= one.error == other.error or abs(one.error - other.error) <= BATCH_PART * one.error
    return Alone.BITS if near else Alone.OTHER


def _record(subject: Subject, case: Case, answer: Answer, alone: Alone | None) -> Record:
    stranger, truth = subject.stranger, case.made.truth
    plan, way = case.plan, case.plan.way
    facts = (
        stranger.name, stranger.group, way.name, way.group, plan.kind, plan.number,
        str(case.question),
    )  # fmt: skip
    recovery = answer.recovery
    if recovery is None:
        outcome = Outcome.TRACEBACK if answer.crash else Outcome.REFUSED
        outcome = outcome if answer.crash or answer.refusal else Outcome.SLOW
        words = answer.crash or answer.refusal
        return Record(*facts, outcome, words=words, seconds=answer.seconds, clean=truth.clean)
    outcome = judge(recovery, truth, told=case.told, named=case.question.family is not None)
    return Record(
        *facts, outcome, label_error(recovery, truth.labels), recovery.error,
        recovery.message, answer.seconds, false_alarm(recovery, truth), truth.clean, alone,
        _covered(recovery, case),
    )  # fmt: skip


def _covered(recovery: sl.Recovery, case: Case) -> float | None:
    if recovery.interval is None or case.made.truth.samples > 1:
        return None
    (low, high), y = recovery.interval, case.made.truth.labels[0]
    return float(((low - 1e-6 <= y) & (y <= high + 1e-6)).double().mean())
