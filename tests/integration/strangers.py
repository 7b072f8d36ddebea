"""Updates of clients that nobody here wrote: other losses, optimisers, codecs and mistakes.

Everything is made with torch's own losses and optimisers, in files as people hold them. The truth
travels beside the files and is read by the tests alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.audit import Truth
from tests.integration.audits import run

Tensors = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

TAGS, CLASSES, WIDTH = 14, 10, 20  # labels of an X-ray, classes, entries of a record


# Networks. The command line makes them by name; their weights are drawn anew every time.
def tagger() -> nn.Module:
    """A network for records with fourteen tags, as of chest X-rays."""
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, TAGS)
    )


def tagging_cnn() -> nn.Module:
    """A convolutional network with fourteen tags."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * 9, TAGS),
    )  # fmt: skip


def classifier() -> nn.Module:
    """A network for records with ten classes."""
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def bare() -> nn.Module:
    """The same with a head that has no bias."""
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES, bias=False))


def smooth() -> nn.Module:
    """A fully connected network with tanh."""
    return nn.Sequential(
        nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, CLASSES)
    )


def cnn() -> nn.Module:
    """A convolutional network with ten classes that can be walked back layer by layer."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, padding=2, stride=2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(12 * 16, CLASSES),
    )  # fmt: skip


def dropping() -> nn.Module:
    """The classifier with dropout."""
    return nn.Sequential(
        nn.Dropout(0.3), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, CLASSES)
    )


def of_a_fixed_seed() -> nn.Module:
    """The classifier as a factory makes it that seeds itself: the same weights every time."""
    with torch.random.fork_rng([]):
        torch.manual_seed(17)
        return classifier()


SHAPES = {
    tagger: (WIDTH,), classifier: (WIDTH,), bare: (WIDTH,), smooth: (WIDTH,), dropping: (WIDTH,),
    of_a_fixed_seed: (WIDTH,), tagging_cnn: (1, 12, 12), cnn: (3, 16, 16),
}  # fmt: skip


def made(factory: Callable[[], nn.Module], seed: int = 0, gain: float = 1.0) -> nn.Module:
    """Return a network with weights of a seed, those of its last layer times ``gain``."""
    torch.manual_seed(seed)
    model = factory().eval()
    with torch.no_grad():
        list(model.children())[-1].weight.mul_(gain)
    return model


# Losses.
def bce(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, y.to(z.dtype))


def mse(z: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(z, y.to(z.dtype))


def hinge(z: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(z, y)


def focal(z: Tensor, y: Tensor, gamma: float = 2.0) -> Tensor:
    right = z.softmax(-1).gather(1, y[:, None])[:, 0]
    return ((1 - right) ** gamma * F.cross_entropy(z, y, reduction="none")).mean()


def at_temperature(temperature: float) -> Loss:
    return lambda z, y: F.cross_entropy(z / temperature, y)


def smoothing(weight: float) -> Loss:
    return nn.CrossEntropyLoss(label_smoothing=weight)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y)


def tags(seed: int, positive: int = 4) -> Tensor:
    """Return several labels at once (1, 14), of zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.zeros(1, TAGS)
    y[0, torch.randperm(TAGS, generator=generator)[:positive]] = 1.0
    return y


# What clients compute and send.
def gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> Tensors:
    """Return the gradient of a loss by parameter name."""
    found = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def accumulated(model: nn.Module, x: Tensor, y: Tensor, parts: int) -> Tensors:
    """Return the sum of the gradients of micro-batches, which nobody divided by their number."""
    own = copy.deepcopy(model)
    own.zero_grad()
    for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
        F.cross_entropy(own(some), labels).backward()
    return {n: p.grad for n, p in own.named_parameters() if p.grad is not None}


def amp(model: nn.Module, x: Tensor, y: Tensor, scale: float = 65536.0) -> Tensors:
    """Return the gradient of a scaled loss under autocast, which nobody divided by the scale."""
    with torch.autocast("cpu", torch.bfloat16):
        z = model(x)
    return gradient_of(model, scale * F.cross_entropy(z.float(), y))


def gradient_of(model: nn.Module, loss: Tensor) -> Tensors:
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def trained(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    optimiser: Optimiser,
    loss: Loss = cross_entropy,
    *,
    rates: Sequence[float] | None = None,
    change: Callable[[nn.Module], None] | None = None,
) -> Tensors:
    """Return the state after steps of torch's own optimiser.

    Args:
        model: the network at the weights before; it is left as it was.
        batches: the data of each step.
        optimiser: makes the optimiser of parameters.
        loss: what is minimised.
        rates: the learning rate of each step, if a schedule changes it.
        change: what is done to the gradients before a step, such as clipping them.
    """
    own = copy.deepcopy(model)
    chosen = optimiser(own.parameters())
    for step, (x, y) in enumerate(batches):
        for group in chosen.param_groups if rates is not None else ():
            group["lr"] = rates[step]
        chosen.zero_grad()
        loss(own(x), y).backward()
        if change is not None:
            change(own)
        chosen.step()
    return own.state_dict()


def clip_each_tensor(model: nn.Module, largest: float = 0.05) -> None:
    """Clip the gradient of every parameter on its own, as layer-wise clipping does."""
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_([parameter], largest)


def trust_ratios(model: nn.Module) -> None:
    """Scale the gradient of every parameter to a part of the parameter's length, as LARS does."""
    for p in model.parameters():
        if p.grad is not None and float(p.grad.norm()):
            p.grad.mul_(0.01 * float(p.detach().norm()) / float(p.grad.norm()))


# Codecs.
def top_k(sent: Tensors, kept: float) -> Tensors:
    """Keep the largest entries of the whole update, as sparsifying clients do."""
    sizes = torch.cat([g.abs().flatten() for g in sent.values()])
    least = sizes.topk(max(int(kept * len(sizes)), 1)).values.min()
    return {n: torch.where(g.abs() >= least, g, 0.0) for n, g in sent.items()}


def pruned(sent: Tensors, kept: float) -> Tensors:
    """Keep the largest entries of every tensor."""
    return {n: top_k({n: g}, kept)[n] for n, g in sent.items()}


def int8(sent: Tensors, generator: torch.Generator | None = None) -> Tensors:
    """Round every tensor to 255 levels, to the nearest or, with a generator, at random."""
    return {n: _rounded(g, generator) for n, g in sent.items()}


def _rounded(g: Tensor, generator: torch.Generator | None) -> Tensor:
    step = g.abs().max() / 127 if bool(g.any()) else torch.tensor(1.0)
    level = g / step
    if generator is None:
        return level.round() * step
    return (level + torch.rand(g.shape, generator=generator)).floor() * step


def with_noise(sent: Tensors, std: float, seed: int = 0) -> Tensors:
    """Add Gaussian noise to every entry."""
    generator = torch.Generator().manual_seed(seed)
    return {n: g + std * torch.randn(g.shape, generator=generator) for n, g in sent.items()}


# Files and their audits.
@dataclass(frozen=True, eq=False)
class Found:
    """What ``softleak audit`` answered.

    Attributes:
        code: the exit code.
        report: the report of the one update in ``audit.json``; empty if nothing was audited.
        audit: all of ``audit.json``.
        page: the text of ``index.html``.
        output: what was printed.
    """

    code: int
    report: dict[str, Any]
    audit: dict[str, Any]
    page: str
    output: str

    @property
    def states(self) -> dict[str, str]:
        return self.report.get("states", {})

    @property
    def leaks(self) -> set[str]:
        return set(self.report.get("leaks", ()))

    @property
    def green(self) -> set[str]:
        """The kinds of leak that are said to have withstood an attack."""
        return {kind for kind, state in self.states.items() if state == "attacked without success"}

    @property
    def named(self) -> set[int]:
        """The classes that are claimed to be in the update, by their presence or by the label."""
        if not self.report:
            return set()
        label, told = self.report["label"], set(self.report["composition"]["present"])
        if "class" in self.leaks and label["class_index"] is not None:
            told.add(label["class_index"])
        if "label" in self.leaks and label["label"] is not None:
            told |= {c for c, part in enumerate(label["label"]) if part > 0.5}
        return told

    @property
    def psnr(self) -> float:
        """How well the input was found, by the truth in dB; minus infinity if it was not."""
        scored = (self.report.get("score") or {}).get("psnr")
        return float("-inf") if scored is None else scored

    def hypothesis(self, name: str) -> dict[str, Any]:
        """What the fit says of one assumption."""
        (one,) = [h for h in self.report["fit"]["hypotheses"] if h["name"] == name]
        return one

    @property
    def contradicted(self) -> dict[str, str]:
        """The assumptions that the numbers contradict, each with what explains them instead."""
        held = self.report["fit"]["hypotheses"]
        return {h["name"]: h["explanation"] for h in held if h["state"] == "contradicted"}

    @property
    def explained(self) -> dict[str, str]:
        """What explains the numbers, of every assumption."""
        return {h["name"]: h["explanation"] for h in self.report["fit"]["hypotheses"]}


class Files:
    """A folder with the files of one client, and audits of them by the command line."""

    def __init__(self, folder: Path, factory: Callable[[], nn.Module], seed: int = 0,
                 gain: float = 1.0) -> None:  # fmt: skip
        self.folder, self.factory = folder, factory
        self.model = made(factory, seed, gain)
        self.shape = SHAPES[factory]
        self.x = torch.rand(1, *self.shape)
        self.save("weights.pt", self.model.state_dict())

    def save(self, name: str, tensors: Tensors) -> Path:
        torch.save({n: t.detach().clone() for n, t in tensors.items()}, self.folder / name)
        return self.folder / name

    @property
    def weights(self) -> Path:
        return self.folder / "weights.pt"

    def share(self, sent: Tensors, *options: object, weights: bool = True) -> Found:
        """Return the audit of a file of gradients."""
        given = ("--weights", self.weights) if weights else ()
        return self.audited("--share", self.save("share.pt", sent), *given, *options)

    def after(self, state: Tensors, *options: object) -> Found:
        """Return the audit of two checkpoints."""
        update = ("--before", self.weights, "--after", self.save("after.pt", state))
        return self.audited(*update, *options)

    def audited(self, *options: object) -> Found:
        """Return the audit with these options; the true input is known to the score alone."""
        out, truth = self.folder / "out", self.folder / "truth.pt"
        Truth(input=self.x[0]).save(truth)
        name = f"{self.factory.__module__}:{self.factory.__name__}"
        shape = ",".join(map(str, self.shape))
        matched = () if "--labels-only" in options else ("--match-seconds", 0)
        done = run(
            "--model", name, "--input-shape", shape, "--truth", truth, *matched, *options,
            "--out", out,
        )  # fmt: skip
        written = (out / "audit.json").is_file()
        audit = json.loads((out / "audit.json").read_text()) if written else {}
        page = (out / "index.html").read_text() if written else ""
        report = audit["reports"][0] if audit.get("reports") else {}
        return Found(done.exit_code, report, audit, page, done.output)
