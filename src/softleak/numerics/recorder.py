"""The one place where hooks are set on a stranger's model: watch its layers while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

Before = Callable[[str, tuple[Any, ...]], Any]  # name and arguments; None, or other arguments
After = Callable[[str, tuple[Any, ...], Any], Any]  # and output; None, or another output


@contextmanager
def watched(
    modules: Mapping[str, nn.Module], *, before: Before | None = None, after: After | None = None
) -> Iterator[None]:
    """Call ``before`` and ``after`` whenever one of the modules runs, until the block ends."""
    with ExitStack() as stack:
        for name, module in modules.items():
            if before is not None:
                handle = module.register_forward_pre_hook(
                    lambda _, given, name=name: before(name, given)
                )
                stack.callback(handle.remove)
            if after is not None:
                handle = module.register_forward_hook(
                    lambda _, given, output, name=name: after(name, given, output)
                )
                stack.callback(handle.remove)
        yield


@contextmanager
def recorded_inputs(model: nn.Module, *names: str) -> Iterator[dict[str, list[Tensor]]]:
    """Yield the first argument of every run of each named layer, in the order of the runs."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    modules = {name: model.get_submodule(name) for name in names}
    with watched(modules, before=lambda name, given: seen[name].append(given[0])):
        yield seen
