from __future__ import annotations

from pathlib import Path

import pytest

from softleak.audit.leaks import Leak
from softleak.cli.options import Request
from softleak.core.errors import SoftleakError
from softleak.core.vocabulary import UpdateKind

UPDATE = Path("u.pt")


def test_without_an_update_the_sample_is_meant():
    assert Request().of_the_sample
    assert Request(noise=0.1, labels_only=True, what_if=True).of_the_sample
    assert not Request(model="lenet").of_the_sample
    assert not Request(share=UPDATE).of_the_sample
    Request().check()
    Request(model="lenet", share=UPDATE, kind=UpdateKind.DELTA, lr=0.1).check()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(labels_only=True, fail_on=[Leak.INPUT]), "attacks no input"),
        (Request(samples=4), "which update"),
        (Request(share=UPDATE), "which model"),
        (Request(model="m", share=UPDATE, before=UPDATE), "not both"),
        (Request(model="m", before=UPDATE), "belong together"),
        (Request(model="m", share=UPDATE, lr=0.1), "--kind delta"),
        (Request(model="m", share=UPDATE, kind=UpdateKind.WEIGHTS), "before it by --weights"),
        (Request(model="m", share=UPDATE, weights=UPDATE, random_weights=True), "contradicts"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_options_that_do_not_go_together_are_named(request_, words):
    with pytest.raises(SoftleakError, match=words):
        request_.check()
