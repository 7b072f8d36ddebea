"""Plain networks on vectors: activations, class counts, number formats, loud heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.adversary.stranger import VECTOR, Stranger

GROUP = "plain networks"


def mlp(
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
    features: int = 24,
    bias: bool = True,
) -> nn.Module:
    """Two layers and a head; ``bias`` is the head's."""
    return nn.Sequential(
        nn.Linear(VECTOR[0], 32), activation(), nn.Linear(32, features), activation(),
        nn.Linear(features, classes, bias=bias),
    )  # fmt: skip


def residual(classes: int = 10) -> nn.Module:
    """LayerNorm before the head."""
    return nn.Sequential(
        nn.Linear(VECTOR[0], 24), nn.SiLU(), nn.LayerNorm(24), nn.Linear(24, classes, bias=False)
    )


def bare(classes: int = 10) -> nn.Module:
    """Softmax regression: the feature is the input."""
    return nn.Linear(VECTOR[0], classes)


def _stranger(
    name: str,
    build: Callable[[], nn.Module],
    trained: int = 0,
    loud: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Stranger:
    return Stranger(name, GROUP, build, VECTOR, trained, loud, dtype=dtype)


ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.GELU, nn.SiLU, nn.Mish, nn.PReLU, nn.Hardswish, nn.Tanh,
)  # fmt: skip
COUNTS = (2, 3, 4, 5, 6)
MOST = 60  # recoveries with so many classes that each takes seconds

VECTORS = (
    *(_stranger(f"MLP, {one.__name__}", partial(mlp, activation=one)) for one in ACTIVATIONS),
    *(_stranger(f"{n} classes", partial(mlp, n)) for n in COUNTS),
    *(_stranger(f"{n} classes, no head bias", partial(mlp, n, bias=False)) for n in COUNTS),
    *(_stranger(f"{n} classes, GELU, no head bias, trained", partial(mlp, n, nn.GELU, bias=False),
                60) for n in (2, 4, 6)),
    Stranger("1000 classes", GROUP, partial(mlp, 1000), VECTOR, most=MOST),
    Stranger("300 classes, no head bias", GROUP, partial(mlp, 300, bias=False), VECTOR, most=MOST),
    _stranger("no head bias", partial(mlp, bias=False)),
    _stranger("no head bias, trained", partial(mlp, bias=False), 80),
    _stranger("GELU, no head bias, trained", partial(mlp, activation=nn.GELU, bias=False), 80),
    _stranger("GELU, no head bias, loud", partial(mlp, activation=nn.GELU, bias=False), 0, 60.0),
    _stranger("loud head", mlp, 0, 60.0),
    _stranger("trained and loud", mlp, 60, 10.0),
    _stranger("LayerNorm, trained", residual, 60),
    _stranger("softmax regression", bare),
    _stranger("narrow feature", partial(mlp, features=4)),
    _stranger("float64", mlp, 30, dtype=torch.float64),
    _stranger("float64, GELU, no head bias", partial(mlp, activation=nn.GELU, bias=False), 30,
              dtype=torch.float64),
    _stranger("float16", mlp, 30, dtype=torch.float16),
    _stranger("bfloat16", mlp, 30, dtype=torch.bfloat16),
    _stranger("bfloat16, no head bias", partial(mlp, bias=False), 0, dtype=torch.bfloat16),
)  # fmt: skip
