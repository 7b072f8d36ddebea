"""What the terminal and the exit code say of an audit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import typer

from softleak.audit import Audit, Refusal
from softleak.audit.leaks import Leak
from softleak.cli import audit as jobs
from softleak.cli.audit import carry_out, exit_code
from softleak.cli.exits import Exit
from softleak.cli.options import Request
from softleak.core.fit import Bearing, Fit, Hypothesis, Topic
from softleak.present.terminal import closing_words, refusal_table

REFUSED = (Refusal("bad.pt", "truncated"),)


def report(leaks: set[Leak], unattacked: set[Leak], *broken: Hypothesis) -> SimpleNamespace:
    fit = Fit.of(broken)
    return SimpleNamespace(leaks=frozenset(leaks), unattacked=frozenset(unattacked), fit=fit)


LEAKED, UNTRIED = report({Leak.INPUT}, set()), report(set(), {Leak.INPUT})
BROKEN = report(set(), set(), Hypothesis(Topic.WEIGHTS, Bearing.CONTRADICTED))


@pytest.mark.parametrize(
    ("reports", "refused", "expected"),
    [
        ((), (), Exit.MISTAKE),
        ((LEAKED, UNTRIED), REFUSED, Exit.LEAK),
        ((UNTRIED,), REFUSED, Exit.UNATTACKED),
        ((BROKEN,), (), Exit.UNATTACKED),
        ((LEAKED, BROKEN), (), Exit.LEAK),
        ((report({Leak.LABEL}, set()),), REFUSED, Exit.INCOMPLETE),
        ((report({Leak.LABEL}, {Leak.CLASS}),), (), Exit.DONE),
    ],
)
def test_a_leak_outweighs_what_was_not_attacked_and_that_what_was_refused(
    reports, refused, expected
):
    assert exit_code(Audit(reports, refused), frozenset({Leak.INPUT})) is expected


def test_an_audit_of_nothing_boasts_of_no_speed():
    assert closing_words(Audit((), REFUSED)).plain == "No update could be audited."


@pytest.mark.parametrize(
    ("count", "title"), [(1, "1 file was not audited"), (2, "2 files were not audited")]
)
def test_refused_files_are_counted_in_words(count, title):
    assert refusal_table(Audit((), REFUSED * count)).title == title


def test_ctrl_c_says_what_was_kept(monkeypatch, capsys, tmp_path):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "run", stopped)
    with pytest.raises(typer.Exit) as ended:
        carry_out(Request(out=tmp_path / "audit"))
    assert ended.value.exit_code == Exit.INTERRUPTED
    assert "Stopped. Nothing was kept" in capsys.readouterr().err
    assert not (tmp_path / "audit").exists()
