"""This module builds a fully connected network with a bias-free head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from softleak.models.checks import positive


class MLP(nn.Module):
    """This has hidden layers `features.{0,2,...}` and the head `classifier`."""

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
        """Return logits (N, classes) of inputs (N, ...), flattened to (N, features)."""
        logits: Tensor = self.classifier(self.features(x.flatten(1)))
        return logits


def mlp(
    features: int,
    hidden: Sequence[int] = (256, 128),
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
    bias: bool = True,
) -> MLP:
    """Build a fully connected network.

    Args:
        features: the entries of one input.
        hidden: the width of each hidden layer.
        classes: the number of classes.
        activation: makes the activation after each hidden layer.
        bias: whether hidden layers have a bias; the head never has one.
    """
    positive("features", features)
    positive("classes", classes)
    for width in hidden:
        positive("every width in hidden", width)
    return MLP(features, hidden, classes, activation, bias)
