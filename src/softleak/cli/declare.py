"""This module turns the fields of a dataclass into the options of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., None])


def takes(options: type) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one parameter for each field of a dataclass.

    Args:
        options: a dataclass whose fields are annotated with Typer's ``Option`` or ``Argument``.
    """
    hints: dict[str, Any] = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, annotation=hints[field.name],
            default=Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(options)
    ]  # fmt: skip

    def decorate(command: Command) -> Command:
        command.__annotations__ = dict(hints)
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate
