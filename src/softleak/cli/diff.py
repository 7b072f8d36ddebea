"""Carry out ``softleak diff``: two audits in, a table and an exit code out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from softleak.cli.exits import Exit, mistakes, plain_table
from softleak.cli.options import DiffOptions
from softleak.present.difference import AuditDifference, difference, load_audit


def carry_out(options: DiffOptions) -> None:
    """Compare two audits, show what differs, and end with an exit code."""
    with mistakes():
        found = difference(load_audit(options.before), load_audit(options.after))
    if options.as_json:
        sys.stdout.write(json.dumps(as_plain(found)) + "\n")
    else:
        _show(Console(), found)
    raise typer.Exit(Exit.LEAK if options.fail_on_worse and found.worse else Exit.DONE)


def as_plain(found: AuditDifference) -> dict[str, object]:
    """Return a difference as plain data for JSON."""
    changes = [
        {
            "update": change.update,
            "leak": change.leak.value,
            "before": change.before.value,
            "after": change.after.value,
            "worse": change.worse,
        }
        for change in found.changes
    ]
    return {"words": found.words, "worse": found.worse, **asdict(found), "changes": changes}


def _show(console: Console, found: AuditDifference) -> None:
    console.print(plain_table("What was audited", ("", "before", "after"), found.settings))
    console.print(plain_table("Updates that leak", ("kind", "before", "after"), found.counts))
    changes = [(c.update, c.leak.value, c.before.value, c.after.value) for c in found.changes]
    for title, columns, rows in (
        ("What changed", ("update", "kind", "before", "after"), changes),
        ("How good it is", ("update", "of what", "before", "after"), found.qualities),
        ("Where attacks end", ("defence", "attack", "before", "after"), found.defences),
    ):
        if rows:
            console.print(plain_table(title, columns, rows))
    console.print(Text(found.words))
