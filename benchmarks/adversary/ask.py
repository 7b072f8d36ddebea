"""Asking the library: many shares in one call, with a limit on time, catching everything."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from torch import nn

import softleak as sl
from benchmarks.adversary.questions import Question
from benchmarks.adversary.subject import Case
from softleak.core.head import find_head
from softleak.labels.evidence.relation import Relation

LIMIT = 30.0  # seconds a recovery may take, of this process alone
TOGETHER = 480  # entries of labels asked about in one call, which bounds memory


class TooSlow(BaseException):
    """The limit has passed. No ``except Exception`` of the library or of a model swallows it."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What came back: a recovery, a refusal, a traceback, or nothing within the limit."""

    recovery: sl.Recovery | None
    refusal: str = ""
    crash: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Prepared:
    """The head and the evidence of a model, found once; None where the library refused it."""

    model: nn.Module
    head: sl.Head | None
    relations: tuple[Relation, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> Prepared:
        try:
            head = find_head(model, None, shape)
            return cls(model, head, tuple(sl.probe(model, shape, head=head)))
        except Exception:  # asked again for each share, where it counts
            return cls(model, None)

    def ask(self, question: Question, cases: Sequence[Case]) -> tuple[sl.Recovery, ...]:
        """All of them in one call, with what was found before."""
        return sl.recover_labels(
            self.model, [case.made.share for case in cases], family=question.family,
            evidence=self.relations if question.evidence else False, scale=question.scale,
            head=self.head,
        )  # fmt: skip

    def ask_plainly(self, case: Case) -> sl.Recovery:
        """One share, as a stranger would ask."""
        question = case.question
        if question.plain:
            return sl.recover_label(self.model, case.made.share)
        return sl.recover_label(
            self.model, case.made.share, family=question.family, evidence=question.evidence,
            scale=question.scale,
        )  # fmt: skip


def answers(prepared: Prepared, cases: Sequence[Case]) -> Iterator[tuple[Case, Answer]]:
    """An answer for every case, in groups of the same question."""
    if prepared.head is None:
        for case in cases:
            yield case, _one(lambda case=case: prepared.ask_plainly(case))  # type: ignore[misc]
        return
    groups: dict[Question, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.question].append(case)
    for question, group in groups.items():
        single = [case for case in group if case.plan.way.noisy]
        several = [case for case in group if not case.plan.way.noisy]
        for case in single:
            yield from _together(prepared, question, [case])
        most = max(TOGETHER // prepared.head.classes, 1)
        for start in range(0, len(several), most):
            yield from _together(prepared, question, several[start : start + most])


def _together(
    prepared: Prepared, question: Question, cases: Sequence[Case]
) -> Iterator[tuple[Case, Answer]]:
    """One call for all; one for each if that fails, so that every failure has its share."""
    if len(cases) > 1:
        began = time.process_time()
        try:
            with limited(LIMIT):
                found = prepared.ask(question, cases)
        except (Exception, TooSlow):
            pass
        else:
            each = (time.process_time() - began) / len(cases)
            yield from zip(cases, (Answer(one, seconds=each) for one in found), strict=True)
            return
    for case in cases:
        yield case, _one(lambda case=case: prepared.ask(question, [case])[0])  # type: ignore[misc]


def _one(ask: Callable[[], sl.Recovery]) -> Answer:
    began = time.process_time()
    try:
        with limited(LIMIT):
            recovery = ask()
        return Answer(recovery, seconds=time.process_time() - began)
    except sl.SoftleakError as error:
        return Answer(None, refusal=f"{type(error).__name__}: {error}")
    except TooSlow:
        return Answer(None, seconds=LIMIT)
    except Exception as error:  # what the suite is there to find
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = str(error).strip().splitlines() or [""]
        at = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        return Answer(None, crash=f"{type(error).__name__}: {words[0]} ({at})")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``TooSlow`` after so many seconds of processor time, in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        raise TooSlow

    earlier = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)
