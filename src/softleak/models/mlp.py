"""A fully connected network with a bias-free head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from softleak.models.checks import positive


class MLP(nn.Module):
    """Hidden layers `features.{0,2,...}`, head `classifier`."""

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        classes: int,
        activation: Callable[[], nn.Module],
        bias: bool,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(features, width, bias=bias), activation()]
            features = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(features, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (N, ...), flattened to (N, features), to logits (N, classes)."""
        logits: Tensor = self.classifier(self.features(x.flatten(1)))
        return logits


def mlp(
    features: int,
    hidden: Sequence[int] = (256, 128),
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
    bias: bool = True,
) -> MLP:
    """Build an MLP; `bias` is about the hidden layers, the head never has one."""
    positive("features", features)
    positive("classes", classes)
    for width in hidden:
        positive("every width in hidden", width)
    return MLP(features, hidden, classes, activation, bias)
