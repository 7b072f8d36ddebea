from __future__ import annotations

from softleak.audit.leaks import Leak
from softleak.core.vocabulary import State
from softleak.present.page import tiles


def test_there_is_a_tile_for_every_kind_of_leak():
    counts = {(Leak.LABEL, State.LEAKED): 2, (Leak.INPUT, State.NOT_ATTACKED): 3}
    made = tiles(lambda leak, state: counts.get((leak, state), 0), 3)
    assert len(made) == len(Leak)
    assert [tile["count"] for tile in made] == [2, 0, 0, 0, 0]
    assert {tile["what"]: tile["untried"] for tile in made if tile["untried"]} == {"input": 3}
