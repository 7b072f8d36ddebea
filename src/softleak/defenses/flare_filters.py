"""NVIDIA FLARE's own privacy filters on a share, by its real classes.

Needs the extra ``nvflare``: ``pip install '.[nvflare]'`` in a checkout of softleak.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from softleak.core.errors import OptionError, import_extra
from softleak.core.share import GradientShare
from softleak.defenses.defense import positive

FLARE_MODULES = {  # where each filter lives
    "PercentilePrivacy": "nvflare.app_common.filters.percentile_privacy",
    "SVTPrivacy": "nvflare.app_common.filters.svt_privacy",
    "ExcludeVars": "nvflare.app_common.filters.exclude_vars",
}


@dataclass(frozen=True)
class FlareFilter:
    """A step of weights, sent through a filter of NVIDIA FLARE."""

    name: str  # the class of the filter
    arguments: Mapping[str, Any] = field(default_factory=dict)  # its arguments
    # The learning rate that turns the share into a difference of weights, on which it acts.
    lr: float = 0.1
    seed: int = 0  # the seed of what it draws
    random: bool = False  # whether it draws anything

    def __post_init__(self) -> None:
        positive(self.lr, "the learning rate")
        if self.name not in FLARE_MODULES:
            raise OptionError(f"expected one of {', '.join(FLARE_MODULES)}, got {self.name!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        dxo, context = _flare("nvflare.apis.dxo"), _flare("nvflare.apis.fl_context")
        made = getattr(_flare(FLARE_MODULES[self.name]), self.name)(**self.arguments)
        step = {n: (-self.lr * g.double()).to(g.dtype).cpu().numpy() for n, g in share.items()}
        with _seeded(self.seed):
            carrier = dxo.DXO(dxo.DataKind.WEIGHT_DIFF, step).to_shareable()
            came = dxo.from_shareable(made.process(carrier, context.FLContext())).data
        sent = {n: torch.from_numpy(np.asarray(a)).to(share[n]) for n, a in came.items()}
        changed = {name: -tensor / self.lr for name, tensor in sent.items()}
        return replace(share, gradients=changed, scale=None)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, from which the filters draw, and leave it as it was."""
    before = np.random.get_state()
    level = logging.root.manager.disable
    np.random.seed(seed)
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        np.random.set_state(before)
        logging.disable(level)


def _flare(module: str) -> ModuleType:
    return import_extra(module, "NVIDIA FLARE's filters need NVIDIA FLARE", "nvflare")
