"""Compile the evaluation of a batch, or say in one line why that is impossible."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softleak.errors import OptionError


def compiled(
    function: Callable[..., tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the function compiled at its first call, which is when compiling may fail."""
    from torch._dynamo.exc import TorchDynamoException  # takes a second to import

    torch.compiler.reset()  # or what was compiled for other problems counts against a limit
    fast = torch.compile(function, dynamic=False)

    def run(*given: object) -> tuple[Tensor, Tensor]:
        try:
            return fast(*given)
        except TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise OptionError(
                f"gradient matching could not be compiled ({reason}); go without compiling, or "
                "install a C++ compiler"
            ) from error

    return run
