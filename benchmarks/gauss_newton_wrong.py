"""Try to have a wrong image proved: other labels, noise, scales, modes and networks than assumed.

    python -m benchmarks.gauss_newton_wrong [--tries 500] [--seed 0]

Every try draws a small network, an image, a way in which the share or what is said of it is not as
it should be, and a start. An image that is proved although its true error is more than 10 times the
predicted one is wrong. Tries with nothing amiss show that images are proved at all.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from softleak.core.client import Client
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.descent import DampedDescent
from softleak.matching.gauss_newton.equations import BatchKnowledge
from softleak.matching.gauss_newton.method import GaussNewton

SHAPE = (2, 6, 6)
FEW_CLASSES = 4
WRONG = 10.0  # a proved image is wrong if its error is so many times the predicted one
Padding = Literal["zeros", "circular"]
SHORT = GaussNewton(descent=DampedDescent(steps=25), memory=1 << 28)


class SmallResidual(nn.Module):
    """A stem, one residual block with BatchNorm, and a head behind pooling or not."""

    def __init__(
        self, act: Callable[[], nn.Module], padding: Padding = "zeros", pooled: bool = True
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(SHAPE[0], 8, 3, padding=1, padding_mode=padding)
        inner = nn.Conv2d(8, 8, 3, padding=1, padding_mode=padding)
        self.block = nn.Sequential(inner, nn.BatchNorm2d(8), act())
        self.down = nn.Conv2d(8, 12, 3, stride=1 if padding == "circular" else 2, padding=1,
                              padding_mode=padding)  # fmt: skip
        self.act, self.pooled = act(), pooled
        self.head = nn.Linear(12 if pooled else 12 * 9, FEW_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = self.act(self.down(x + self.block(x)))
        logits: Tensor = self.head(x.mean((2, 3)) if self.pooled else x.flatten(1))
        return logits


def blurred() -> nn.Module:
    """Return a network that sees only means of pixels: most directions are not determined."""
    return nn.Sequential(nn.AvgPool2d(2), SmallPerceptron(SHAPE[0] * 9))


def SmallPerceptron(entries: int) -> nn.Module:  # noqa: N802
    """Return a perceptron with smooth units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(entries, 24), nn.Tanh(), nn.Linear(24, 12), nn.GELU(),
        nn.Linear(12, FEW_CLASSES),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "SiLU": lambda: SmallResidual(nn.SiLU),
    "GELU, not pooled": lambda: SmallResidual(nn.GELU, pooled=False),
    "tanh": lambda: SmallResidual(nn.Tanh),
    "circular padding": lambda: SmallResidual(nn.SiLU, "circular"),
    "ReLU": lambda: SmallResidual(nn.ReLU),
    "blurred": blurred,
    "perceptron": lambda: SmallPerceptron(72),
}


@dataclass(frozen=True, eq=False)
class Case:
    """What the client did, and what the attacker is told.

    Attributes:
        share: what was sent.
        labels: the labels (B, C) that the attacker is told.
        label_error: the error that the attacker is told.
    """

    share: GradientShare
    labels: Tensor
    label_error: float = 1e-7


Amiss = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Case]


def _sent(model: nn.Module, x: Tensor, y: Tensor) -> GradientShare:
    return Client().share(model, x, y) if len(x) > 1 else Client().share(model, x[0], y[0])


def nothing(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Return the case as it should be."""
    return Case(_sent(model, x, y), y)


def wrong_label(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Tell another label than the true one."""
    off = torch.randn(y.shape, generator=g, dtype=y.dtype) * float(
        10 ** -(4 * torch.rand(1, generator=g))
    )
    return Case(_sent(model, x, y), (y.log() + off).softmax(1))


def no_label(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Tell nothing of the label: it has to be found as well."""
    return Case(_sent(model, x, y), torch.full_like(y, 1 / y.shape[1]), float("inf"))


def noise_said(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Add noise of a size that is told."""
    size = float(10 ** -(2 + 4 * torch.rand(1, generator=g)))
    share = _sent(model, x, y).map(lambda _, t: t + size * torch.randn(t.shape, generator=g))
    return Case(share.expecting(size), y)


def noise_unsaid(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Add noise that nobody tells of."""
    said = noise_said(model, x, y, g)
    return Case(GradientShare(dict(said.share), SHAPE), y)


def other_scale(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Multiply the share by a factor that nobody tells of."""
    factor = 1 + float(10 ** -(3 * torch.rand(1, generator=g)))
    return Case(_sent(model, x, y).scaled(factor), y)


def other_weights(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Compute the share with slightly other weights."""
    share = _sent(model, x, y)
    size = float(10 ** -(2 + 3 * torch.rand(1, generator=g)))
    return Case(share.map(lambda _, t: t * (1 + size * torch.randn(t.shape, generator=g))), y)


def one_of_two(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Send the mean of two samples, and tell of one."""
    second = torch.randn(x.shape, generator=g)
    return Case(_sent(model, torch.cat([x, second]), torch.cat([y, y.flip(1)])), y)


def few_layers(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Withhold all but some layers."""
    share = _sent(model, x, y)
    order = torch.randperm(len(share), generator=g).tolist()
    names = list(share)
    return Case(share.without(*[names[i] for i in order[: len(names) // 2]]), y)


def half_precision(model: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Case:
    """Send the share in 16 bits."""
    return Case(_sent(model, x, y).map(lambda _, t: t.half()), y)


AMISS: dict[str, Amiss] = {
    "nothing": nothing, "wrong label": wrong_label, "no label": no_label,
    "noise, said": noise_said, "noise, unsaid": noise_unsaid, "scale": other_scale,
    "weights": other_weights, "one of two": one_of_two, "layers withheld": few_layers,
    "16 bits": half_precision,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of one try: whether an image was proved, and its error over the predicted one."""

    network: str
    amiss: str
    proved: bool
    ratio: float

    @property
    def wrong(self) -> bool:
        """Return whether a wrong image was proved."""
        return self.proved and not self.ratio <= WRONG


def attempt_tries(
    tries: int, seed: int = 0, names: Sequence[str] = tuple(NETWORKS)
) -> Iterator[Outcome]:
    """Yield the outcomes of so many tries, every network named and every way in turn."""
    torch.manual_seed(seed)
    subjects = {}
    for name in names:
        model = NETWORKS[name]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
            for _ in range(20):
                model.train()(torch.randn(32, *SHAPE))
        subjects[name] = Subject.of(model.eval(), SHAPE)
    ways = list(AMISS)
    for number in range(tries):
        name, way = names[number % len(names)], ways[number // len(names) % len(ways)]
        generator = torch.Generator().manual_seed(seed * 100003 + number)
        x = torch.randn(1, *SHAPE, generator=generator)
        y = torch.randn(1, FEW_CLASSES, generator=generator).softmax(1)
        case = AMISS[way](subjects[name].model, x, y, generator)
        size = (0.05, 0.5, 2.0)[number % 3]
        start = size * torch.randn(x.shape, generator=generator)
        start = x + 0.02 * start if number % 4 == 3 else start
        known = BatchKnowledge(case.labels.double(), case.label_error)
        found = SHORT.solve(subjects[name], case.share, known, start)
        ratio = float("inf")
        if found.certificate.error is not None:
            told = float(found.certificate.error.square().mean().sqrt())
            ratio = float((found.inputs - x).square().mean().sqrt()) / told
        yield Outcome(name, way, found.certificate.proved, ratio)


def main() -> None:
    """Run the tries and print how many images were proved, and how many of these were wrong."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tries", type=int, default=500, help="the number of tries")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything")
    given = parser.parse_args()
    found = list(attempt_tries(given.tries, given.seed))
    for title, key in (("network", "network"), ("amiss", "amiss")):
        total = Counter(getattr(one, key) for one in found)
        proved = Counter(getattr(one, key) for one in found if one.proved)
        print(f"{title:20} tries  proved")
        for name, count in total.items():
            print(f"{name:20} {count:5}  {proved[name]:6}")
    proofs = [one for one in found if one.proved]
    honest = sum(1 / 3 <= one.ratio <= 3 for one in proofs)
    wrong = [one for one in proofs if one.wrong]
    print(
        f"{len(found)} tries, {len(proofs)} proved, {honest} within a factor 3, {len(wrong)} wrong"
    )
    for one in wrong:
        print(f"wrong: {one}")


if __name__ == "__main__":
    main()
