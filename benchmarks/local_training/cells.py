"""The networks, clients and labels that are measured, and one cell of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

import softleak as sl
from softleak.labels.local.recover import recover_trained
from softleak.labels.recover import recover
from softleak.paper import data, models

SHAPE = (3, 32, 32)
EXACT = 1e-3  # L1: a label this close counts as exact
STABLE = 2.0  # lr ‖x‖² below which steps of the head are stable
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": models.trained_lenet,
    "untrained_lenet": models.lenet,
    "mlp": lambda: models.mlp(3072),
    "resnet18": lambda: models.resnet18_cifar(classes=10),
}
LABELS: dict[str, data.Augmentation] = {"smoothed": data.Smoothing(), "mixed": data.Mixup()}


@dataclass(frozen=True)
class Cell:
    """What came of the shares of one cell."""

    name: str
    shares: int
    stable: int
    exact_stable: int
    exact: int
    unique: int
    wrong: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.name:58s} exact {self.exact_stable}/{self.stable} of the stable, "
            f"{self.exact}/{self.shares} of all; UNIQUE {self.unique}, wrong {self.wrong}; "
            f"{self.seconds:.1f} s of processor time"
        )


def network(
    name: str, head_alone: bool, weights: Path | None = None
) -> tuple[sl.Subject, nn.Module]:
    """Return a network, of which only the head is trained if so asked.

    Args:
        name: the name of the network.
        head_alone: whether the other layers are frozen.
        weights: a checkpoint, as ``softleak train`` writes it, in place of initial weights.
    """
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    if weights is not None:
        models.load_weights(model, weights)
    subject = sl.Subject.of(model, SHAPE)
    if head_alone:
        own = (subject.head.weight_name, subject.head.bias_name)
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter_name in own)
    return subject, model


@dataclass(frozen=True, eq=False)
class Drawn:
    """One sample of a client, with the feature that the network makes of it at first."""

    x: torch.Tensor
    y: torch.Tensor
    feature: torch.Tensor

    def stable(self, client: sl.Client) -> bool:
        """Return whether the steps of the head are."""
        rate = float(client.lr) if isinstance(client.lr, float) else 0.0
        return rate * float(self.feature.square().sum()) < STABLE


def drawn(subject: sl.Subject, kind: str, count: int, seed: int) -> list[Drawn]:
    """Return samples with one kind of label; each is run through the network once."""
    seen: list[torch.Tensor] = []
    layer = subject.model.get_submodule(subject.head.name)
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    found = []
    for one in data.samples(data.embedded(), LABELS[kind], count, seed, data.CIFAR10_NORM):
        with torch.no_grad():
            subject.model(one.x if one.x.ndim == 4 else one.x[None])
        found.append(Drawn(one.x, one.y, seen[-1]))
    hook.remove()
    return found


def share_of(subject: sl.Subject, client: sl.Client, one: Drawn) -> sl.GradientShare:
    """Return the update of a client.

    Where the head alone is trained, features never change: the client runs on them.
    """
    head = subject.head
    alone = [n for n, p in subject.model.named_parameters() if p.requires_grad]
    if any(n not in (head.weight_name, head.bias_name) for n in alone):
        return client.share(subject.model, one.x, one.y)
    share = client.share(subject.model.get_submodule(head.name), one.feature, one.y)
    share = share.renamed({n: f"{head.name}.{n}" for n in share})
    return replace(share, input_shape=SHAPE)


def measure(
    name: str, subject: sl.Subject, client: sl.Client, samples: Mapping[str, Sequence[Drawn]]
) -> list[Cell]:
    """Recover the labels of one client's settings, all kinds at once, and count each kind."""
    pairs = [(kind, one) for kind, some in samples.items() for one in some]
    shares = [share_of(subject, client, one) for _, one in pairs]
    start = time.process_time()
    found = recovered(subject, shares)
    spent = (time.process_time() - start) / len(pairs)
    cells = []
    for kind, some in samples.items():
        mine = [f for f, (its, _) in zip(found, pairs, strict=True) if its == kind]
        stable = [one.stable(client) for one in some]
        exact = [off(f, one.y) < EXACT for f, one in zip(mine, some, strict=True)]
        unique = [f.status is sl.Status.UNIQUE for f in mine]
        cells.append(
            Cell(
                f"{name} {kind} {client}",
                len(some),
                sum(stable),
                sum(e and s for e, s in zip(exact, stable, strict=True)),
                sum(exact),
                sum(unique),
                sum(u and not e for u, e in zip(unique, exact, strict=True)),
                spent * len(some),
            )
        )
    return cells


def off(found: sl.Recovery, y: torch.Tensor) -> float:
    """Return the L1 error of the label that is claimed."""
    return 9.0 if found.label is None else float((found.label.cpu() - y).abs().sum())


def recovered(subject: sl.Subject, shares: list[sl.GradientShare]) -> list[sl.Recovery]:
    """Recover all shares of one client's settings, as the product does.

    What is left out is the search for other clients that would fit, which changes no label.
    """
    knowledge = sl.Knowledge()
    return recover_trained(
        subject, knowledge, shares, lambda some: recover(subject, some, knowledge), others=False
    )


def told(share: sl.GradientShare, said: sl.Client) -> sl.GradientShare:
    """Return an update as it arrives: nobody vouches, and the client is as it was said."""
    return replace(share, scale=None, made_by=said.training)
