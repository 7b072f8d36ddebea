import torch

from softleak.core.results import Status
from softleak.matching import MatchProgress, Watch
from softleak.matching.reconstruction import Stopping


class Listener(Watch):
    def __init__(self):
        super().__init__()
        self.heard = []

    def tell(self, progress):
        self.heard.append(progress)


def test_without_a_limit_nothing_ends_it():
    stopping = Stopping(10)
    stopping.tell(5, torch.zeros(2), 2)
    assert not stopping.over
    assert stopping.ended is Status.EXHAUSTED


def test_time_and_somebody_end_it():
    assert Stopping(10, seconds=-1.0).ended is Status.OUT_OF_TIME
    assert not Stopping(10, seconds=1e6).over
    watch = Watch()
    stopping = Stopping(10, watch=watch)
    assert not stopping.over
    watch.stop()
    assert stopping.over
    assert stopping.ended is Status.INTERRUPTED


def test_who_watches_hears_counts_and_the_median_loss():
    listener = Listener()
    stopping = Stopping(10, watch=listener, every=0.0)
    stopping.tell(3, torch.tensor([1.0, 2.0, 9.0]), 3)
    stopping.tell(2, torch.tensor([4.0, torch.nan]), 1)
    assert listener.heard == [MatchProgress(3, 10, 2.0, 3), MatchProgress(5, 10, 4.0, 1)]


def test_who_watches_is_not_told_too_often():
    listener = Listener()
    stopping = Stopping(10, watch=listener, every=1e6)
    stopping._told = -1e7
    for _ in range(5):
        stopping.tell(1, torch.ones(1), 1)
    assert [one.done for one in listener.heard] == [1]
