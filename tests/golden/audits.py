"""Audits, as ``audit.json`` holds them: ``softleak.report.as_data`` of ``sl.audit``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from softleak.auditing import Audit, Options
from softleak.report import as_data

import softleak as sl
from softleak.defenses import Cast, Clip, GaussianNoise, Int8, Prune, Sign
from tests.golden.networks import images, labels, network
from tests.golden.plain import number
from tests.golden.texts import made_text


@dataclass(frozen=True)
class Case:
    """One share of a network and what is known of it."""

    net: str
    kind: str = "onehot"
    change: str = "none"
    size: int = 1
    classes: int = 8
    knowledge: sl.Knowledge | None = None
    seconds: float = 0.0  # for networks that are no chain; a proof ends the search
    labels_only: bool = False
    seed: int = 0


UNKNOWN = sl.Knowledge(scale="unknown")
CHANGES = {
    "noise": GaussianNoise(1e-3, 1),
    "noise_large": GaussianNoise(1e-1, 2),
    "clip": Clip(0.01),
    "prune": Prune(0.5),
    "half": Cast(torch.float16),
    "int8": Int8(),
    "sign": Sign(),
}


def _plain():
    for net in ("mlp", "conv", "bn_pool", "vit", "linear"):
        for kind in ("onehot", "mixed", "any"):
            yield f"{net}_{kind}", Case(net, kind)
    for net in ("mlp_no_bias", "layernorm", "mlp_tanh", "conv_leaky", "conv_no_bias", "residual"):
        yield net, Case(net, "smoothed", seed=1)
    for change in CHANGES:
        yield f"mlp_{change}", Case("mlp", change=change, seed=2)
    for change in ("noise", "prune", "half"):
        yield f"conv_{change}", Case("conv", "smoothed", change, seed=3)
    yield "declared_noise", Case("mlp", change="noise", knowledge=sl.Knowledge(noise=1e-3))
    yield "clipped_said", Case("mlp", "mixed", "clip", knowledge=UNKNOWN)
    yield "onehot_said", Case("conv", knowledge=sl.Knowledge(family=sl.OneHot()), seed=4)
    yield "head_only", Case("mlp", "any", knowledge=sl.Knowledge(head_only=True))
    yield "labels_only", Case("conv", "any", labels_only=True)
    yield "solved_conv", Case("residual", "onehot", seconds=120.0, classes=5, seed=5)


def _several():
    for size in (2, 4):
        known = sl.Knowledge(samples=size)
        yield f"batch_mlp_{size}", Case("mlp_wide", size=size, classes=12, knowledge=known)
        yield f"batch_unsaid_{size}", Case("conv", size=size, classes=12)
    known = sl.Knowledge(samples=2)
    yield "batch_any", Case("mlp_wide", "any", size=2, classes=12, knowledge=known)
    yield "batch_large", Case("mlp", size=12, classes=5, knowledge=sl.Knowledge(samples=12))
    for text in ("lr=0.1,steps=1", "lr=0.05,steps=3", "lr=0.05,steps=2,momentum=0.9"):
        yield f"trained_{text}", Case("mlp_tanh", change=f"train_{text}", classes=6)
    yield "trained_head", Case("linear", "any", change="train_lr=0.1,steps=3", classes=6)
    yield "trained_batch", Case("mlp", change="train_lr=0.05,epochs=1,batch_size=2", size=4)
    yield "adam", Case("linear", change="train_lr=0.01,steps=1,optimiser=adam", classes=6)


TEXTS = {
    f"text_{model}_{change}": (model, change, 6)
    for model, change in (
        ("reader", "plain"), ("reader", "noise"), ("reader", "frozen"), ("orderless", "plain"),
        ("bert", "plain"), ("gpt2", "plain"),
    )
}  # fmt: skip
CASES = {**dict(_plain()), **dict(_several())}
NAMES = (*CASES, *TEXTS)


def audit(name: str) -> dict:
    """Return the content of ``audit.json`` without times, versions and sentences."""
    if name in TEXTS:
        model, share = made_text(*TEXTS[name])
        options = Options(seconds=0.0)
    else:
        case = CASES[name]
        model, share = _share(case)
        known = {} if case.knowledge is None else {"knowledge": case.knowledge}
        options = Options(seconds=case.seconds, inputs=not case.labels_only, **known)
    report = sl.audit(model, share, options=options, name=name)
    return stripped(as_data(Audit((report,))))


def _share(case: Case):
    model = network(case.net, case.classes, 30 + case.seed)
    x = images(case.size, 80 + case.seed)
    y = labels(case.kind, case.size, case.classes, 80 + case.seed).float()
    if case.change.startswith("train_"):
        return model, sl.Client.parse(case.change.removeprefix("train_")).share(model, x, y)
    share = sl.capture(model, x, y)
    return model, CHANGES.get(case.change, lambda one: one)(share)


LEFT_OUT = {"seconds", "provenance", "sha256", "model", "name", "verdict", "why", "attack"}
LEFT_OUT |= {"condition", "residual", "misfits", "spectrum", "explanation"}
VOCABULARY = {"severity", "outcome", "label", "class", "feature", "input", "composition"}


def stripped(data, key=""):
    """Return the data without what differs between runs, and without sentences.

    Words of a fixed vocabulary (severities, states, outcomes) stay, also with spaces.
    """
    if isinstance(data, dict):
        data = _open(data) if key == "input" else data
        kept = {k: stripped(v, k) for k, v in data.items() if k not in LEFT_OUT}
        return {k: v for k, v in kept.items() if v is not None and v != [] and v != {}}
    if isinstance(data, list | tuple):
        data = sorted(data, key=_by_label) if key == "each" else data
        return [one for value in data if (one := stripped(value, key)) is not None]
    if isinstance(data, str):
        return None if " " in data and key not in VOCABULARY else data
    return number(data) if isinstance(data, float) else data


def _open(finding: dict) -> dict:
    """Return an input without the numbers that are rounding where it is not determined."""
    if finding.get("determined") or not finding.get("layers"):
        return finding
    layers = [{k: v for k, v in layer.items() if k != "rows"} for layer in finding["layers"]]
    return {**finding, "psnr_predicted": None, "layers": layers}


def _by_label(sample: dict):
    """Return what samples of a batch are sorted by: their order says nothing."""
    return [round(v, 3) for v in sample["label"] or ()]
