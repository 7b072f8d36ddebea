"""Between Flower's records and softleak's shares: weights in, weights out, the step between."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from softleak.errors import ShareError
from softleak.naming import own_names
from softleak.share import GradientShare

LEARNING_RATE = "lr"  # what Flower's examples call it in the config they send
SAMPLES = "num-examples"  # and the metric a client counts its samples in
State = Mapping[str, Tensor]


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays in a message, and its key."""
    records = content.array_records
    if len(records) != 1:
        raise ShareError(f"expected one record of arrays, got {len(records)}")
    return next(iter(records.items()))


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """The arrays as tensors of their own; raises ``ShareError`` if one cannot be read."""
    found = {}
    for name, array in record.items():
        try:
            # A copy: what a mod or the app does to the array later is not what was sent.
            found[name] = torch.tensor(array.numpy())
        except (ValueError, TypeError, OSError, EOFError, KeyError, MemoryError) as error:
            raise ShareError(f"the array {name!r} cannot be read ({error})") from error
    return found


def under_own_names(held: State, model: nn.Module) -> dict[str, Tensor]:
    """Arrays under the model's names, which Flower's lists of arrays do not carry."""
    names = own_names(held, model)
    return {names[name]: tensor for name, tensor in held.items()}


def step_between(before: State, after: State, lr: float | None) -> GradientShare:
    """The gradient behind two states; times an unknown factor if the learning rate is unknown."""
    if not after:
        raise ShareError("it sent no arrays")
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
    """What was said, else what the round's config says, else unknown."""
    if lr is not None:
        return lr
    said = (config.get(LEARNING_RATE) for config in content.config_records.values())
    return next((float(v) for v in said if isinstance(v, int | float) and v > 0), None)


def claimed_samples(content: RecordDict) -> int | None:
    """How many samples a client says it used."""
    said = (metrics.get(SAMPLES) for metrics in content.metric_records.values())
    return next((int(v) for v in said if isinstance(v, int | float) and v >= 1), None)


def round_of(content: RecordDict) -> int:
    """The number of the round as Flower's strategies send it; 0 if they do not."""
    said = (_round(config) for config in content.config_records.values())
    return next((number for number in said if number), 0)


def _round(config: ConfigRecord) -> int:
    number = config.get("server-round", 0)
    return number if isinstance(number, int) else 0


def record_after(
    record: ArrayRecord, before: State, share: GradientShare, lr: float
) -> ArrayRecord:
    """What is sent instead: the received state and one step of ``share`` from it.

    What the share does not hold, running statistics and counters, goes back as it came.
    """
    sent: dict[str, Array] = {}
    for name, start in before.items():
        moved = start.double() - lr * share[name] if name in share else start
        sent[name] = Array(moved.to(start.dtype).numpy())
    return ArrayRecord({name: sent[name] for name in record})
