"""What the terminal and the exit code say of an audit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from softleak.auditing import Audit, Refusal
from softleak.cli.audit import exit_code
from softleak.cli.exits import Exit
from softleak.cli.tables import closing_words, refusal_table
from softleak.vocabulary import Leak

REFUSED = (Refusal("bad.pt", "truncated"),)


def report(leaks: set[Leak], unattacked: set[Leak]) -> SimpleNamespace:
    return SimpleNamespace(leaks=frozenset(leaks), unattacked=frozenset(unattacked))


LEAKED, UNTRIED = report({Leak.INPUT}, set()), report(set(), {Leak.INPUT})


@pytest.mark.parametrize(
    ("reports", "refused", "expected"),
    [
        ((), (), Exit.MISTAKE),
        ((LEAKED, UNTRIED), REFUSED, Exit.LEAK),
        ((UNTRIED,), REFUSED, Exit.UNATTACKED),
        ((report({Leak.LABEL}, set()),), REFUSED, Exit.INCOMPLETE),
        ((report({Leak.LABEL}, {Leak.CLASS}),), (), Exit.DONE),
    ],
)
def test_a_leak_outweighs_what_was_not_attacked_and_that_what_was_refused(
    reports, refused, expected
):
    assert exit_code(Audit(reports, refused), frozenset({Leak.INPUT})) is expected


def test_an_audit_of_nothing_boasts_of_no_speed():
    assert closing_words(Audit((), REFUSED)).plain == "No share could be audited."


@pytest.mark.parametrize(
    ("count", "title"), [(1, "1 file was not audited"), (2, "2 files were not audited")]
)
def test_refused_files_are_counted_in_words(count, title):
    assert refusal_table(Audit((), REFUSED * count)).title == title
