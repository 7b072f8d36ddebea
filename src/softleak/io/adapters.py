"""Adapters as PEFT keeps them: their names in files and in models, and a model made to hold them.

A file says ``query.lora_A.weight`` and ``classifier.weight``, the model has the name of the adapter
in between: ``query.lora_A.NAME.weight`` and ``classifier.modules_to_save.NAME.weight``. Of a
folder's ``adapter_config.json`` only plain settings of known methods are read, and nothing is
downloaded.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from softleak.core.errors import FileError, ModelError, in_a_line
from softleak.io.untrusted import MOST_HEADER_BYTES, check_file, shown

CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
KINDS = r"(?:lora_[A-Za-z_]+|ia3_l)"
_SAVED = re.compile(r"(?<![^.])modules_to_save\.[^.]+\.")
_NAMED = re.compile(rf"(?<![^.])({KINDS})\.(?!weight$|bias$)[^.]+")
_PROMPT = re.compile(r"(?<![^.])prompt_encoder\.[^.]+\.embedding\.weight$")
_PART = re.compile(rf"(?<![^.])(?:{KINDS}|modules_to_save|prompt_encoder)(?:\.|$)")


def in_files(name: str) -> str:
    """Return what a parameter of a model is called in a file of adapters."""
    name = _PROMPT.sub("prompt_embeddings", _NAMED.sub(r"\1", _SAVED.sub("", name)))
    return name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def is_adapter(name: str) -> bool:
    """Return whether a parameter of a model is part of an adapter, or trained beside one."""
    return _PART.search(name) is not None


def by_file_name(
    names: Iterable[str], model: nn.Module, bare: Callable[[str], str]
) -> dict[str, str]:
    """Return the model's names by those in files; of several adapters the one that is trained."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[in_files(bare(name))].append(name)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    found = {}
    for short, all_ in groups.items():
        active = all_ if len(all_) == 1 else [name for name in all_ if name in trained]
        if len(active) != 1:
            raise ModelError(
                f"the model holds {len(all_)} adapters with a tensor {short!r}; let one of them be "
                "trained (set_adapter in PEFT), or make the model with that one alone"
            )
        found[short] = active[0]
    return found


# The settings that say what a model computes, by method.
_SETTINGS = {
    "LORA": (
        "r", "lora_alpha", "target_modules", "fan_in_fan_out", "bias", "use_rslora", "use_dora",
        "rank_pattern", "alpha_pattern", "modules_to_save", "exclude_modules",
        "layers_to_transform", "layers_pattern", "task_type",
    ),
    "IA3": (
        "target_modules", "feedforward_modules", "fan_in_fan_out", "modules_to_save", "task_type",
    ),
}  # fmt: skip
_PLAIN = (bool, int, float, str, type(None))


def with_adapters(model: nn.Module, path: object) -> nn.Module:
    """Return a model that holds adapters as a folder describes them; itself if it needs none."""
    if not isinstance(path, str | Path) or not (Path(path) / CONFIG).is_file():
        return model
    if any(is_adapter(name) for name, _ in model.named_parameters()):
        return model
    kind, settings = _read(Path(path) / CONFIG)
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            "the model has no adapters, and PEFT is not installed to add those of "
            f"{shown(Path(path).name)}: pip install softleak[peft], or give a model with adapters"
        ) from error
    made: Any = {"LORA": peft.LoraConfig, "IA3": peft.IA3Config}[kind]
    try:
        found: nn.Module = peft.get_peft_model(model, made(**settings))
        return found.eval()
    except Exception as error:  # PEFT raises what it likes for settings of another model
        raise ModelError(
            f"the adapters of {shown(Path(path).name)} do not fit this model: {in_a_line(error)}"
        ) from error


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the method and the settings of a stranger's file; raises ``FileError``."""
    check_file(path)
    if path.stat().st_size > MOST_HEADER_BYTES:
        raise FileError(f"{path.name} is too large for a description of adapters")
    try:
        data = json.loads(path.read_text("utf-8"))
        kind = str(data["peft_type"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{path.name} is not a description of adapters") from error
    if kind not in _SETTINGS:
        known = ", ".join(_SETTINGS)
        raise FileError(
            f"{path.name} describes adapters of the kind {shown(kind)!r}; softleak makes models "
            f"with {known}; give a model that holds these adapters already"
        )
    held = {name: data[name] for name in _SETTINGS[kind] if data.get(name) is not None}
    if not all(_is_plain(value) for value in held.values()):
        raise FileError(f"{path.name} holds settings that are not plain values")
    return kind, held


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and isinstance(v, _PLAIN) for k, v in value.items())
    return isinstance(value, _PLAIN) or (
        isinstance(value, list) and all(isinstance(one, _PLAIN) for one in value)
    )
