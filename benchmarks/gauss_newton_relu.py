"""Try Gauss–Newton on small ReLU networks with the masks of doubtful units as unknowns.

    python -m benchmarks.gauss_newton_relu [--tries 10] [--starts 30 20 10] [--doubt 0.5]

With its masks held fixed a ReLU network is smooth, and so is the share as a function of pixels and
masks. Units whose input is small may be on the wrong side. Their masks are unknowns like the
pixels, and all others are held at what the image says. Every round solves for both, reads the masks
from the new image, and doubts fewer units than the round before. A try counts as explained, without
any truth, if the image with its own masks misses the share by no more than rounding.

The share is rounded to float32 and the label is given. A search begins at the true image with noise
of a size that leaves so many dB, in this benchmark only. The PSNR is that of pixels of range one,
one unit of the input being worth a quarter. Nothing is proved: a kinked network is never smooth.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from benchmarks.gauss_newton import PIXEL
from benchmarks.gauss_newton_wrong import FEW_CLASSES, SHAPE, SmallResidual

SOLVED = 100.0  # dB
ROUNDING = 2.0**-24
EXPLAINED = 5.0  # the largest misfit of an image that explains the share, in roundings


@dataclass(eq=False)
class Gates:
    """The masks of all units of a network, in the order in which an input meets them."""

    given: Sequence[Tensor] | None = None
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        """Return inputs of units times their masks: those given, or those of a ReLU."""
        self.seen.append(x)
        return x * (x > 0) if self.given is None else x * self.given[len(self.seen) - 1]


class GatedUnits(nn.Module):
    """A ReLU whose mask can be given."""

    def __init__(self, gates: Gates) -> None:
        super().__init__()
        self.gates = gates

    def forward(self, x: Tensor) -> Tensor:
        return self.gates(x)


class GatedShare:
    """What a network with gated units sends for one image, as a function of pixels and masks."""

    def __init__(self, pooled: bool, seed: int) -> None:
        torch.manual_seed(seed)
        self.gates = Gates()
        model = SmallResidual(lambda: GatedUnits(self.gates), pooled=pooled)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
            for _ in range(20):
                self.gates.seen = []
                model.train()(torch.randn(32, *SHAPE))
        self.model = model.eval().double()
        self.parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        grey = torch.zeros(math.prod(SHAPE), dtype=torch.double)
        self.shapes = [a.shape for a in self.inputs_of_units(grey)]

    def inputs_of_units(self, x: Tensor) -> list[Tensor]:
        """Return what enters every unit at pixels (n,), layer by layer."""
        self.gates.given, self.gates.seen = None, []
        with torch.no_grad():
            self.model(x.view(1, *SHAPE))
        return self.gates.seen

    def masks(self, x: Tensor) -> Tensor:
        """Return the masks (U,) of all units at pixels (n,)."""
        return torch.cat([(a > 0).reshape(-1) for a in self.inputs_of_units(x)]).to(x)

    def rows(self, x: Tensor, y: Tensor, masks: Tensor) -> Tensor:
        """Return all gradients (R,) of pixels (n,) with a label (1, C) at given masks (U,)."""
        parts = masks.split_with_sizes([shape.numel() for shape in self.shapes])
        given = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            self.gates.given, self.gates.seen = given, []
            logits = functional_call(self.model, parameters, (x.view(1, *SHAPE),))
            return -(torch.log_softmax(logits, 1) * y).sum()

        found = grad(loss)(self.parameters)
        return torch.cat([found[name].reshape(-1) for name in self.parameters])

    def weights(self, share: Tensor) -> Tensor:
        """Return the inverse rounding (R,) of each entry of a share (R,), alike within a layer."""
        sizes = [p.numel() for p in self.parameters.values()]
        errors = [
            torch.full_like(part, ROUNDING * float(part.norm()) / math.sqrt(len(part)) + 1e-30)
            for part in share.split_with_sizes(sizes)
        ]
        return 1 / torch.cat(errors)


@dataclass(frozen=True)
class MaskSearch:
    """Solve for pixels and for the masks of doubtful units in turn.

    Attributes:
        doubt: the part of all units whose masks are unknowns in the first round.
        shrink: this part of them is still in doubt in the next round.
        rounds: the largest number of rounds; the last three have no unknown masks.
        steps: the largest number of steps in a round.
    """

    doubt: float = 0.5
    shrink: float = 0.6
    rounds: int = 12
    steps: int = 4

    def __call__(
        self, sent: GatedShare, share: Tensor, y: Tensor, x: Tensor
    ) -> tuple[Tensor, bool]:
        """Return pixels (n,) found from a start (n,), and whether they explain the share (R,)."""
        part, explained = self.doubt, False
        for number in range(self.rounds):
            inputs = sent.inputs_of_units(x)
            size = torch.cat([(a.abs() / a.norm() * a.numel() ** 0.5).reshape(-1) for a in inputs])
            last = number >= self.rounds - 3
            unsure = size.argsort()[: 0 if last else int(part * len(size))]
            held = sent.masks(x)
            x = self._solved(sent, share, y, x, held, unsure)
            off = (sent.rows(x, y, sent.masks(x)) - share) * sent.weights(share)
            explained = float(off.square().mean().sqrt()) < EXPLAINED
            if explained:
                break
            part *= self.shrink
        return x, explained

    def _solved(
        self, sent: GatedShare, share: Tensor, y: Tensor, x: Tensor, held: Tensor, unsure: Tensor
    ) -> Tensor:
        """Return the pixels (n,) after some damped steps on pixels and unsure masks."""
        weight, n, damping = sent.weights(share), len(x), 1e-3

        def rows(u: Tensor) -> Tensor:
            return sent.rows(u[:n], y, held.scatter(0, unsure, u[n:]))

        u = torch.cat([x, held[unsure]])
        r = (rows(u) - share) * weight
        for _ in range(self.steps):
            every = torch.eye(len(u), dtype=u.dtype)
            jacobian = vmap(lambda v, u=u: jvp(rows, (u,), (v,))[1])(every) * weight
            matrix, slope, before = jacobian @ jacobian.T, jacobian @ r, float(r.norm())
            lengths = matrix.diagonal().clamp_min(1e-12 * float(matrix.diagonal().max()))
            for _ in range(8):
                moved = u - torch.linalg.solve(matrix + damping * lengths.diag(), slope)
                new = (rows(moved) - share) * weight
                if float(new.norm()) < before:
                    u, r, damping = moved, new, max(damping / 10, 1e-12)
                    break
                damping *= 10
            if float(r.norm()) > 0.95 * before:
                break
        return u[:n]


def attempt(pooled: bool, number: int, start: float, search: MaskSearch) -> tuple[float, bool]:
    """Return the PSNR that a search reaches, and whether it explains the share."""
    sent = GatedShare(pooled, number)
    generator = torch.Generator().manual_seed(100 + number)
    truth = torch.randn(math.prod(SHAPE), generator=generator).double()
    y = torch.randn(1, FEW_CLASSES, generator=generator).softmax(1).double()
    share = sent.rows(truth, y, sent.masks(truth)).float().double()
    noise = torch.randn(truth.shape, generator=generator).double()
    x = truth + noise / noise.norm() * len(noise) ** 0.5 * 10 ** (-start / 20) / PIXEL
    found, explained = search(sent, share, y, x)
    off = ((found - truth) * PIXEL).square().mean()
    return -10 * math.log10(float(off) + 1e-300), explained


def main() -> None:
    """Run all tries and print a line for each network, start and search."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tries", type=int, default=10, help="networks and images of each line")
    parser.add_argument("--starts", type=float, nargs="+", default=[30.0, 20.0, 10.0], help="dB")
    parser.add_argument("--doubt", type=float, nargs="+", default=[0.0, 0.5], help="part of units")
    given = parser.parse_args()
    for pooled in (False, True):
        for start in given.starts:
            for doubt in given.doubt:
                began, search = time.process_time(), MaskSearch(doubt)
                found = [attempt(pooled, k, start, search) for k in range(given.tries)]
                wrong = sum(psnr < SOLVED for psnr, explained in found if explained)
                print(
                    f"{'pooled' if pooled else 'all places'}, from {start:g} dB, {doubt:.0%} in "
                    f"doubt: {sum(psnr >= SOLVED for psnr, _ in found)} of {len(found)} above "
                    f"{SOLVED:g} dB, median {median(psnr for psnr, _ in found):.1f} dB, "
                    f"{sum(explained for _, explained in found)} explained, {wrong} of these "
                    f"wrong, {(time.process_time() - began) / len(found):.1f} s each",
                    flush=True,
                )


if __name__ == "__main__":
    main()
