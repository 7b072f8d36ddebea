"""This module fits pointwise relations to probes: which activation, and its coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from softleak.head import Head
from softleak.labels.evidence.pointwise_relations import Pointwise
from softleak.labels.evidence.probe_runs import PROBE, Probe
from softleak.labels.evidence.slopes import KNOWN_ACTIVATIONS, Activation


def fit_pointwise(name: str, head: Head, runs: Sequence[Probe]) -> list[Pointwise]:
    """Return the pointwise relations that explain some probes of one parameter."""
    gradient, features = runs[0].share[name], head.W.shape[1]
    if gradient.ndim != 1 or name == head.bias_name or not gradient.any():
        return []
    if features % len(gradient):
        return []
    orders = (False, True) if len(gradient) < features else (False,)
    return [
        relation
        for activation in KNOWN_ACTIVATIONS
        for channels_last in orders
        for relation in _fitted(name, len(gradient), activation, channels_last, runs)
    ]


def _fitted(
    name: str, channels: int, activation: Activation, channels_last: bool, runs: Sequence[Probe]
) -> Iterator[Pointwise]:
    """Yield the relation whose coefficients explain some probes, if any do."""
    peak = max(float(run.feature.abs().max()) for run in runs)
    blank = Pointwise(name, channels, activation, (), peak, channels_last)
    columns = [
        torch.stack([blank.gather(run.d * term) for term in activation.basis(run.feature)], -1)
        for run in runs
    ]
    A = torch.cat(columns).cpu()
    g = torch.cat([run.share[name] for run in runs]).cpu()
    # A basis is degenerate on a model that never visits one side of zero; gelsd allows for that.
    theta = torch.linalg.lstsq(A, g.double()[:, None], driver="gelsd").solution[:, 0]
    if (A @ theta - g).norm() <= PROBE.tolerance * torch.finfo(g.dtype).eps * g.norm():
        yield replace(blank, coefficients=tuple(theta.tolist()))
