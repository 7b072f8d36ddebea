"""The client's local training as a round's config describes it."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import RecordDict

from softleak.local_training import UNKNOWN, LocalTraining, read_settings

CONFIG_SETTINGS = {  # names in a config, as Flower's examples write them, and ours
    "momentum": "momentum",
    "weight-decay": "weight_decay",
    "nesterov": "nesterov",
    "optimiser": "optimiser",
    "optimizer": "optimiser",
    "batch-size": "batch_size",
    "local-epochs": "epochs",
    "local-steps": "steps",
}


def local_training(
    content: RecordDict, lr: float | None, said: LocalTraining | None
) -> LocalTraining | None:
    """Return how a client trains in this round; None if nothing but a learning rate is known.

    Args:
        content: the content of a message to a client, whose config may hold settings such as
            ``momentum``, ``batch-size`` or ``local-epochs``.
        lr: the learning rate of this round; None if it is unknown.
        said: what whoever set up the audit says of the clients. It counts before the config.
    """
    rate = UNKNOWN if lr is None else lr
    if said is not None:
        return replace(said.training, lr=said.lr if lr is None and said.trains else rate)
    held = {
        CONFIG_SETTINGS[name]: value
        for config in content.config_records.values()
        for name, value in config.items()
        if name in CONFIG_SETTINGS and isinstance(value, int | float | str | bool)
    }
    if not held:
        return None
    settings = read_settings(",".join(f"{name}={value}" for name, value in held.items()))
    return LocalTraining(**{**settings, "lr": rate})  # type: ignore[arg-type]
