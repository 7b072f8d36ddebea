from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from softleak.cli.app import takes
from softleak.paper.figures import FIGURES
from softleak.paper.options import FIGURE_NAMES, RECIPE_NAMES, TABLE_NAMES
from softleak.paper.reproduction import EXPERIMENTS
from softleak.paper.training import RECIPES


@dataclass(frozen=True)
class Some:
    name: Annotated[str, typer.Argument()]
    count: Annotated[int, typer.Option(min=1)] = 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["a"], Some("a")), (["b", "--count", "3"], Some("b", 3)), (["a", "--count", "0"], None)],
)
def test_the_fields_of_a_dataclass_become_the_options_of_a_command(arguments, expected):
    app, given = typer.Typer(), []

    @app.command()
    @takes(Some)
    def command(**values: object) -> None:
        """Do it."""
        given.append(Some(**values))

    done = CliRunner().invoke(app, arguments)
    assert given == ([] if expected is None else [expected])
    assert done.exit_code == (2 if expected is None else 0)


def test_the_names_on_the_command_line_are_those_there_are():
    assert tuple(EXPERIMENTS) == TABLE_NAMES
    assert tuple(FIGURES) == FIGURE_NAMES
    assert tuple(RECIPES) == RECIPE_NAMES
