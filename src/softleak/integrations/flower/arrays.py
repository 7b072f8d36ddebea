"""This module holds from Flower's records to softleak's shares and back."""

from __future__ import annotations

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from softleak.errors import ShareError
from softleak.integrations.guarding.states import State

LEARNING_RATE_KEY = "lr"  # the name of the learning rate in the config of Flower's examples
SAMPLES_METRIC = "num-examples"  # the metric in which a client counts its samples


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the one record of arrays in a message, with its key, or raise ``ShareError``."""
    records = content.array_records
    if len(records) != 1:
        raise ShareError(f"expected one record of arrays, got {len(records)}")
    return next(iter(records.items()))


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """Return copies of the arrays as tensors; raise ``ShareError`` if one cannot be read."""
    found = {}
    for name, array in record.items():
        try:
            # It is a copy, because a mod or the app may change the array later.
            found[name] = torch.tensor(array.numpy())
        except (ValueError, TypeError, OSError, EOFError, KeyError, MemoryError) as error:
            raise ShareError(f"the array {name!r} cannot be read ({error})") from error
    return found


def learning_rate(content: RecordDict, lr: float | None) -> float | None:
    """Return the learning rate that was given, or that of the round's config; None if unknown.

    Args:
        content: the content of a message to a client.
        lr: the learning rate that was given, if any.
    """
    if lr is not None:
        return lr
    said = (config.get(LEARNING_RATE_KEY) for config in content.config_records.values())
    return next((float(v) for v in said if isinstance(v, int | float) and v > 0), None)


def claimed_samples(content: RecordDict) -> int | None:
    """Return the number of samples that a client says it used; None if it does not say."""
    said = (metrics.get(SAMPLES_METRIC) for metrics in content.metric_records.values())
    return next((int(v) for v in said if isinstance(v, int | float) and v >= 1), None)


def round_of(content: RecordDict) -> int:
    """Return the number of the round as Flower's strategies send it; 0 if they do not."""
    said = (_round(config) for config in content.config_records.values())
    return next((number for number in said if number), 0)


def _round(config: ConfigRecord) -> int:
    """Return the number of the round in one config; 0 if there is none."""
    number = config.get("server-round", 0)
    return number if isinstance(number, int) else 0


def record_of(state: State, order: ArrayRecord) -> ArrayRecord:
    """Return a state as a record.

    Args:
        state: the weights and buffers by name.
        order: a record of the same names, whose order is kept.
    """
    return ArrayRecord({name: Array(state[name].numpy()) for name in order})
