"""This module lets a report write its page although the package of pages lies above the audit.

The audit calls ``write_page``. The package ``softleak`` itself, which knows every layer, provides
the function that does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

# The second argument is an ``Audit``, a type of a layer above this one.
PageWriter = Callable[[str | PathLike[str], Any], None]

_provided: list[PageWriter] = []


def provide(writer: PageWriter) -> None:
    """Set the function that writes pages from now on."""
    _provided[:] = [writer]


def write_page(path: str | PathLike[str], audit: Any) -> None:  # noqa: ANN401
    """Write the page of an audit with the function that was provided.

    Args:
        path: where the page goes; the file is replaced as a whole or not at all.
        audit: the ``Audit`` to show.
    """
    _provided[0](path, audit)
