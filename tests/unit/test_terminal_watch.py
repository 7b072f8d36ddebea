import io
import signal
import sys
import threading

from softleak.matching import MatchProgress
from softleak.matching.reconstruction import TerminalWatch


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_first_interruption_is_kept_and_the_next_is_an_ordinary_one():
    before = signal.getsignal(signal.SIGINT)
    with TerminalWatch() as watch:
        assert signal.getsignal(signal.SIGINT) is not before
        signal.raise_signal(signal.SIGINT)
        assert watch.interrupted
        assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_are_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def run():
        with TerminalWatch():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch):
    for stream, shown, drawn in (
        (Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "stderr", stream)
        with TerminalWatch(shown=shown) as watch:
            watch.tell(MatchProgress(3, 10, 0.5, 2))
        assert bool(stream.getvalue()) == drawn
