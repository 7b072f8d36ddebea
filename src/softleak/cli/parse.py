"""This module turns strings into models, shapes, class names and normalisations."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from softleak import data, models
from softleak.client import Client
from softleak.data.pack import LARGEST_CLASS_COUNT
from softleak.defenses.dpsgd import PrivateTraining
from softleak.errors import DataError, ModelError
from softleak.local_training import LocalTraining
from softleak.untrusted_files import check_file, shown

NORMALISATIONS: Mapping[str, data.Normalisation] = {
    "cifar10": data.CIFAR10_NORM,
    "imagenet": data.IMAGENET_NORM,
}
LARGEST_INPUT_SHAPE = 1 << 24  # entries of one input


def input_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the input shape that a text such as ``3,32,32`` means."""
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.lower().replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1 or math.prod(shape) > LARGEST_INPUT_SHAPE:
        raise DataError(f"expected an input shape such as 3,32,32; got {text!r}")
    return shape


def client(text: str | None) -> LocalTraining | None:
    """Return the client that settings such as ``lr=0.01,steps=5``, or a file of them, describe."""
    if text is None:
        return None
    path = Path(text)
    if "=" not in text:
        if not os.path.isfile(path):
            raise DataError(
                f"expected settings such as lr=0.01,steps=5, or a file of them; got {text!r}"
            )
        check_file(path)
        text = path.read_text("utf-8", errors="replace")
    described = Client.parse(text)
    if not described.trains:
        raise DataError("a client that sends weights has a learning rate: say lr=0.01, or lr=?")
    return described.training


def private_training(text: str | None) -> PrivateTraining:
    """Return the training that settings such as ``rate=0.01,steps=1000`` describe."""
    kinds = {"clip": float, "rate": float, "steps": int, "delta": float}
    said: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        try:
            said[name] = kinds[name](value)
        except (KeyError, ValueError):
            raise DataError(
                "expected settings such as clip=1,rate=0.01,steps=1000,delta=1e-5; got "
                f"{part.strip()!r}"
            ) from None
    training = PrivateTraining(**said)
    training.dpsgd(
        1.0, 1.0 if training.clip is None else training.clip
    )  # which checks the settings
    return training


def class_names(text: str | None) -> tuple[str, ...]:
    """Return the lines of a file, or ``class 0``, ``class 1``, … for a number of classes."""
    if text is None:
        return ()
    if text.isdecimal():
        if len(text) > len(str(LARGEST_CLASS_COUNT)) or not 2 <= int(text) <= LARGEST_CLASS_COUNT:
            raise DataError(f"expected 2 to {LARGEST_CLASS_COUNT:,} classes, got {text[:20]}")
        return tuple(f"class {i}" for i in range(int(text)))
    path = Path(text)
    if not os.path.isfile(path):
        raise DataError(f"expected a file of class names, one per line, or a number; got {text!r}")
    try:
        lines = (line.strip() for line in path.read_text("utf-8").splitlines())
        return tuple(shown(line) for line in lines if line)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not a text file in UTF-8") from error


def normalisation(text: str | None) -> data.Normalisation | None:
    """Return what ``cifar10``, ``imagenet`` or ``0.5,0.5,0.5/0.2,0.2,0.2`` means."""
    if text is None or text in NORMALISATIONS:
        return NORMALISATIONS[text] if text else None
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in text.split("/"))
    except ValueError as error:
        known = ", ".join(NORMALISATIONS)
        raise DataError(
            f"expected mean/std such as 0.5,0.5,0.5/0.2,0.2,0.2, or {known}; got {text!r}"
        ) from error
    return data.Normalisation(mean, std)


def build_model(
    text: str, classes: int | None, shape: tuple[int, ...] | None
) -> tuple[nn.Module, tuple[int, ...] | None]:
    """Build a model.

    Args:
        text: the name of a model of ours, or ``package.module:factory``.
        classes: the number of classes, if it is known.
        shape: the shape of one input, if it is known.

    Returns:
        The model, and the shape of its input if it is known.
    """
    if text in models.MODELS:
        spec = models.MODELS[text]
        return spec(**_accepted(spec.factory, classes, shape)), shape or spec.input_shape
    if ":" not in text:
        known = ", ".join(models.MODELS)
        raise ModelError(f"expected {known} or package.module:factory; got {text!r}")
    module_name, _, attribute = text.partition(":")
    if module_name.endswith(".py"):
        own = ".".join(Path(module_name).with_suffix("").parts)
        raise ModelError(
            f"expected a module and not a file before the colon, got {text!r}; "
            f"write {own}:{attribute}, from the folder that {own.split('.')[0]} is in"
        )
    # A console script does not see modules beside the user, as `python -m` would.
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module_name), attribute)
        model = made if isinstance(made, nn.Module) else made()
    except Exception as error:  # the user's own code may raise anything
        raise ModelError(f"could not make a model of {text!r}: {error!r}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{text!r} should make an nn.Module, made a {type(model).__name__}")
    return model, shape


def _accepted(
    factory: object, classes: int | None, shape: tuple[int, ...] | None
) -> dict[str, int]:
    """Return what a factory of ours takes of what is known."""
    wanted: dict[str, int] = {} if classes is None else {"classes": classes}
    if shape is not None and len(shape) == 3:
        wanted |= {"in_channels": shape[0], "image": shape[1]}
    takes = inspect.signature(factory).parameters  # type: ignore[arg-type]
    return {name: value for name, value in wanted.items() if name in takes}
