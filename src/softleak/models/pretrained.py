"""This module loads weights of Hugging Face transformers, whose names on disk differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def pretrained_weights(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor] | None:
    """Return weights under the names the library has in memory, converted by the library itself.

    The answer is None if the model holds no network of the library, or if the weights are not all
    of its weights. Nothing is downloaded: the library is given the tensors and the configuration it
    has.
    """
    library: Any = sys.modules.get("transformers")  # a model of it has imported it
    if library is None:
        return None
    for name, module in model.named_modules():
        if isinstance(module, library.PreTrainedModel):
            return _converted(module, held, f"{name}." if name else "")
    return None


def _converted(
    module: Any,  # noqa: ANN401 - the library's own class
    held: Mapping[str, Tensor],
    prefix: str,
) -> dict[str, Tensor] | None:
    try:
        with _silence(sys.modules["transformers"].utils.logging):
            loaded, info = type(module).from_pretrained(
                None, config=module.config, state_dict=dict(held), output_loading_info=True
            )
    except Exception:  # the library raises what it likes for weights of another model
        return None
    if any(info.get(kind) for kind in ("missing_keys", "mismatched_keys", "error_msgs")):
        return None
    return {prefix + name: tensor for name, tensor in loaded.state_dict().items()}


@contextmanager
def _silence(log: Any) -> Iterator[None]:  # noqa: ANN401 - the library's own module
    """Keep the library from printing what does not fit; whoever loads says it in a few lines."""
    before, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if shown:
            log.enable_progress_bar()
