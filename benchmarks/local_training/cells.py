"""The networks, clients and labels that are measured, and one cell of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

import softleak as sl
from softleak import data, models
from softleak.labels.local.recover_trained import answer_trained
from softleak.labels.recover import recover

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
            f"{self.seconds:.1f} s"
        )


def network(name: str, head_alone: bool) -> tuple[sl.Subject, nn.Module]:
    """Return a network, of which only the head is trained if so asked."""
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    subject = sl.Subject.of(model, SHAPE)
    if head_alone:
        own = (subject.head.weight_name, subject.head.bias_name)
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter_name in own)
    return subject, model


def shares_of(
    subject: sl.Subject, client: sl.Client, kind: str, count: int, seed: int
) -> Iterator[tuple[sl.GradientShare, torch.Tensor, bool]]:
    """Yield updates with the true label, and whether the steps of the head are stable.

    Where the head alone is trained, features never change: the client runs on them, once computed.
    """
    seen: list[torch.Tensor] = []
    layer = subject.model.get_submodule(subject.head.name)
    alone = [n for n, p in subject.model.named_parameters() if p.requires_grad]
    probed = all(n in (subject.head.weight_name, subject.head.bias_name) for n in alone)
    for one in data.samples(data.embedded(), LABELS[kind], count, seed, data.CIFAR10_NORM):
        seen.clear()
        hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
        with torch.no_grad():
            subject.model(one.x if one.x.ndim == 4 else one.x[None])
        hook.remove()
        if probed:
            share = client.share(layer, seen[0], one.y)
            share = share.renamed({n: f"{subject.head.name}.{n}" for n in share})
            share = replace(share, input_shape=SHAPE)
        else:
            share = client.share(subject.model, one.x, one.y)
        rate = float(client.lr) if isinstance(client.lr, float) else 0.0
        yield share, one.y, rate * float(seen[0].square().sum()) < STABLE


def measure(
    name: str, subject: sl.Subject, client: sl.Client, kind: str, count: int, seed: int
) -> Cell:
    """Recover the labels of one cell and count."""
    drawn = list(shares_of(subject, client, kind, count, seed))
    start = time.perf_counter()
    found = recovered(subject, [share for share, _, _ in drawn])
    errors = [off(f, y) for f, (_, y, _) in zip(found, drawn, strict=True)]
    unique = [f.status is sl.Status.UNIQUE for f in found]
    return Cell(
        f"{name} {kind} {client}",
        count,
        sum(stable for _, _, stable in drawn),
        sum(e < EXACT and stable for e, (_, _, stable) in zip(errors, drawn, strict=True)),
        sum(e < EXACT for e in errors),
        sum(unique),
        sum(u and e > EXACT for u, e in zip(unique, errors, strict=True)),
        time.perf_counter() - start,
    )


def off(found: sl.Recovery, y: torch.Tensor) -> float:
    """Return the L1 error of the label that is claimed."""
    return 9.0 if found.label is None else float((found.label.cpu() - y).abs().sum())


def recovered(subject: sl.Subject, shares: list[sl.GradientShare]) -> list[sl.Recovery]:
    """Recover all shares of one client's settings, as the product does.

    What is left out is the search for other clients that would fit, which changes no label.
    """
    knowledge = sl.Knowledge()
    answers = answer_trained(
        subject, knowledge, shares, lambda some: recover(subject, some, knowledge)
    )
    return [answer.recovery for answer in answers]


def told(share: sl.GradientShare, said: sl.Client) -> sl.GradientShare:
    """Return an update as it arrives: nobody vouches, and the client is as it was said."""
    return replace(share, scale=None, made_by=said.training)
