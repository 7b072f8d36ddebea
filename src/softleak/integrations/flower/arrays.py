"""This module holds from Flower's records to softleak's shares and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from softleak.errors import ShareError
from softleak.naming import own_names
from softleak.share import GradientShare

LEARNING_RATE_KEY = "lr"  # the name of the learning rate in the config of Flower's examples
SAMPLES_METRIC = "num-examples"  # the metric in which a client counts its samples
State = Mapping[str, Tensor]  # weights and buffers by name


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


def under_own_names(held: State, model: nn.Module) -> dict[str, Tensor]:
    """Return arrays under the model's names, which Flower's lists of arrays do not carry."""
    names = own_names(held, model)
    return {names[name]: tensor for name, tensor in held.items()}


def step_between(before: State, after: State, lr: float | None) -> GradientShare:
    """Return the gradient behind two states.

    Args:
        before: the state that the client received.
        after: the state that it sent back.
        lr: its learning rate. If it is None, the gradient is multiplied by an unknown factor.

    Raises:
        ShareError: if the states are not those of one model, or hold NaN or infinity.
    """
    if not after:
        raise ShareError("it sent no arrays, so there is nothing to audit")
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ShareError(
            f"it sent {len(after)} arrays under other names than the {len(before)} it received, "
            f"first {odd[0]!r}; is it of this model?"
        )
    _check_alike(before, after)
    share = GradientShare.from_update(before, after, lr=1.0 if lr is None else lr)
    share.check_finite()
    return share


def _check_alike(before: State, after: State) -> None:
    """Raise ``ShareError`` unless all arrays have the same shapes and kinds of numbers."""
    for name, start in before.items():
        came = after[name]
        if came.shape != start.shape:
            raise ShareError(
                f"the array {name!r} should have shape {tuple(start.shape)}, got "
                f"{tuple(came.shape)}; is it of this model?"
            )
        if came.is_floating_point() != start.is_floating_point():
            raise ShareError(f"the array {name!r} should be {start.dtype}, got {came.dtype}")


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


def record_after(
    record: ArrayRecord, before: State, share: GradientShare, lr: float
) -> ArrayRecord:
    """Return the record of the received state after one step of a share.

    Running statistics and counters, which a share does not hold, go back as they were received.

    Args:
        record: the record that would be sent otherwise, whose order is kept.
        before: the state that the client received.
        share: the gradient of the step.
        lr: the size of the step.
    """
    sent: dict[str, Array] = {}
    for name, start in before.items():
        moved = start.double() - lr * share[name] if name in share else start
        sent[name] = Array(moved.to(start.dtype).numpy())
    return ArrayRecord({name: sent[name] for name in record})
