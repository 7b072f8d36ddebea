"""Carry out ``softleak claim``: a claim in, a table and an exit code out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from softleak import io as tensor_files
from softleak.bounds.claims import ClaimCheck, check_claim
from softleak.bounds.mechanisms import PrivacyClaim
from softleak.cli.audit import named_object, settings
from softleak.cli.exits import Exit, mistakes, plain_table
from softleak.cli.options import ClaimOptions
from softleak.core.errors import SoftleakError
from softleak.present.bounds import claim_rows
from softleak.present.machine import finite


def carry_out(options: ClaimOptions) -> None:
    """Check a claim, show what was said beside what was found, and end with an exit code."""
    with mistakes():
        found = _checked(options)
    if options.as_json:
        sys.stdout.write(json.dumps(as_plain(found)) + "\n")
    else:
        rows = [
            (what, None if said is None else f"{said:.4g}", came)
            for what, said, came in claim_rows(found)
        ]
        table = plain_table("The claim", ("", "said", "found"), rows)
        Console().print(table, Text(found.message, style="" if found.holds else "bold red"))
    raise typer.Exit(Exit.DONE if found.holds else Exit.LEAK)


def _checked(options: ClaimOptions) -> ClaimCheck:
    such = "clip=1,sensitivity=1,noise=4.8,epsilon=1,delta=1e-5,rate=0.01,rounds=100"
    claim = PrivacyClaim(**settings(options.said, such))
    if options.of is not None and options.share is None:
        return check_claim(named_object(options.of), claim)
    if options.share is None or options.of is not None:
        raise SoftleakError("say what to check: either --of MODULE:NAME or --share FILE")
    sent, undefended = (
        None if path is None else tensor_files.load(path).tensors
        for path in (options.share, options.undefended)
    )
    return check_claim(sent, claim, undefended=undefended)


def as_plain(found: ClaimCheck) -> dict[str, object]:
    """Return a check as plain data for JSON; what is infinite is null."""
    data = asdict(found) | {
        "holds": found.holds,
        "words": found.message,
        "contradictions": [one.name.lower() for one in found.contradictions],
        "cautions": [one.name.lower() for one in found.cautions],
    }
    return {name: finite(value) for name, value in data.items()}
