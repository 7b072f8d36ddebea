"""Bad update files: valid ones with bytes changed, and files made of strange tensors."""

from __future__ import annotations

import io
import json
import struct
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

import softleak as sl
from softleak.audit import (
    Audit,
    Method,
    NamedShare,
    Options,
    Refusal,
    audit_shares,
    prepared,
)
from softleak.audit.run import UpdateFiles
from softleak.core.subject import Subject
from softleak.paper import data
from softleak.present.page import render

PATIENCE = 10.0  # seconds of work
ENDINGS = (".safetensors", ".pt", ".npz")
Rng = np.random.Generator


@dataclass(frozen=True)
class Stock:
    """Valid files, by ending, with the label behind each."""

    subject: Subject
    shares: list[sl.GradientShare]
    labels: list[torch.Tensor]
    files: dict[str, list[bytes]]

    @classmethod
    def make(cls, folder: Path, model: nn.Module, size: int) -> Stock:
        """The shares of a model that takes images of this size."""
        kinds = (data.Hard(), data.Smoothing(), data.Mixup(), data.Dirichlet())
        drawn = [
            sample
            for kind in kinds
            for sample in data.samples(data.embedded().resized(size), kind, 2, 5, data.CIFAR10_NORM)
        ]
        shares = [sl.capture(model, s.x, s.y) for s in drawn]
        files: dict[str, list[bytes]] = {}
        for ending in ENDINGS:
            path = folder / f"valid{ending}"
            for share in shares:
                share.save(path)
                files.setdefault(ending, []).append(path.read_bytes())
            path.unlink()
        return cls(Subject.of(model, (3, size, size)), shares, [s.y for s in drawn], files)


def mutate(content: bytes, rng: Rng) -> bytes:
    """A few bytes flipped, removed, inserted, copied or zeroed, mostly where structure is."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        size = max(len(changed), 1)
        near = [size, 2048, 256][int(rng.integers(3))]
        at = int(rng.integers(min(size, near)))
        at = size - 1 - at if rng.random() < 0.4 else at
        length = int(rng.integers(1, 64))
        match int(rng.integers(7)):
            case 0:
                changed[at : at + 1] = bytes([int(rng.integers(256))])
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = rng.bytes(length)
            case 3:
                changed[at : at + length] = bytes(length)
            case 4:
                other = int(rng.integers(size))
                changed[at : at + length] = changed[other : other + length]
            case 5:
                del changed[at:]
            case _:
                changed[at : at + 8] = struct.pack("<Q", int(rng.integers(2**63)))
    return bytes(changed)


def tamper(share: sl.GradientShare, rng: Rng) -> dict[str, torch.Tensor]:
    """Gradients made strange: values, shapes, dtypes, names.

    A whole share times a factor is not among them: it may be the exact share of another label,
    which nobody can tell from the first (the report says that no factor is assumed).
    """
    held = {name: gradient.clone() for name, gradient in share.items()}
    name = list(held)[int(rng.integers(len(held)))]
    g = held[name]
    value = [np.nan, np.inf, -np.inf, 1e38, 1e-45, 0.0, 3e4][int(rng.integers(7))]
    at = tuple(int(rng.integers(n)) for n in g.shape)
    noise = torch.from_numpy(rng.normal(size=g.shape)).to(g) * g.abs().max()
    changes: list[Callable[[], object]] = [
        lambda: g.index_put_(tuple(map(torch.tensor, at)), torch.tensor(value)),
        lambda: held.update({name: g + noise * 10 ** rng.uniform(-9, 1)}),
        lambda: held.update({name: torch.full_like(g, value)}),
        lambda: held.update({name: g.flip(0)}),
        lambda: held.update({name: g.reshape(-1)}),
        lambda: held.update({name: g[..., None]}),
        lambda: held.update({name: (g * 127 / g.abs().max()).to(torch.int8)}),
        lambda: held.update({name: g.half()}),
        lambda: held.update({name: g.bfloat16()}),
        lambda: held.update({name: g.double() * 10.0 ** rng.uniform(-320, 300)}),
        lambda: held.update({name: g.to(torch.complex64)}),
        lambda: held.update({name: torch.empty(0)}),
        lambda: held.pop(name),
        lambda: held.update({f"module.{name}": held.pop(name)}),
        lambda: held.update({f"\x1b[31m{name}<script>": held.pop(name)}),
        lambda: held.update({f"arr_{i}": held.pop(n) for i, n in enumerate(list(held))}),
        lambda: held.update({n: h.to(torch.float64) * 1e300 for n, h in held.items()}),
        lambda: held.update({n: h * 0 for n, h in held.items()}),
        lambda: held.update({n: h + 1e-3 * torch.randn_like(h) for n, h in held.items()}),
    ]
    changes[int(rng.integers(len(changes)))]()
    return held


def store(tensors: dict[str, torch.Tensor], ending: str, rng: Rng) -> bytes:
    """These tensors in a file, with facts that may be lies, past the checks of ``save``."""
    lies = [{}, {"input_shape": [3, 32, 32]}, {"input_shape": [10**9] * 4}, {"input_shape": "big"}]
    lies += [{"rounding": {"classifier.weight": 1e30}}, {"rounding": [1]}, {"input_shape": [-1]}]
    lies += [{"rounding": {"classifier.weight": float("nan")}}, {"input_shape": [1, 32, 32]}]
    meta = json.dumps(lies[int(rng.integers(len(lies)))])
    into = io.BytesIO()
    if ending == ".safetensors":
        ready = {name: tensor.contiguous() for name, tensor in tensors.items()}
        return safetensors.torch.save(ready, {"softleak": meta})
    if ending == ".npz":
        named = {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in tensors.items()}
        with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, tensor in named.items():
                array = io.BytesIO()
                np.save(array, tensor.numpy())
                archive.writestr(f"{name}.npy", array.getvalue())
            array = io.BytesIO()
            np.save(array, np.array(meta))
            archive.writestr("softleak.npy", array.getvalue())
        return into.getvalue()
    wrong: list[object] = [tensors, list(tensors.values()), {"gradients": tensors}, 7]
    wrong += [{n: t.to_sparse() for n, t in tensors.items()}, {**tensors, "softleak": meta}]
    wrong += [{n: t.flatten()[:1].expand(1 << 40) for n, t in tensors.items() if t.numel()}]
    floats = {n: t.float() for n, t in tensors.items() if not t.is_complex()}
    wrong += [{n: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8) for n, t in floats.items()}]
    wrong += [{n: t.to("meta") for n, t in tensors.items()}]
    torch.save(wrong[int(rng.integers(len(wrong)))], into)
    return into.getvalue()


def bad_file(stock: Stock, rng: Rng) -> tuple[str, bytes, int]:
    """An ending, a content, and which share it was made of."""
    ending, which = ENDINGS[int(rng.integers(3))], int(rng.integers(len(stock.shares)))
    if rng.random() < 0.5:
        return ending, mutate(stock.files[ending][which], rng), which
    content = store(tamper(stock.shares[which], rng), ending, rng)
    return ending, mutate(content, rng) if rng.random() < 0.2 else content, which


def attack(stock: Stock, folder: Path, seed: int) -> str:
    """Audit one bad file as the command does; returns what came of it, raises what must not be."""
    rng = np.random.default_rng(seed)
    ending, content, which = bad_file(stock, rng)
    path = folder / f"bad{ending}"
    path.write_bytes(content)
    start = time.process_time()  # a busy machine is no hang
    audited = UpdateFiles(paths=[path]).audited(stock.subject, Options(inputs=False))
    found = [one if isinstance(one, Refusal) else one[1] for one in audited]
    render(Audit(tuple(f for f in found if not isinstance(f, Refusal))))
    took = time.process_time() - start
    assert took < PATIENCE, f"seed {seed}: {took:.1f} s"
    (one,) = found
    if isinstance(one, Refusal):
        assert "\n" not in one.reason
        return "refused"
    if one.label.proved == "UNIQUE":
        off = float((one.label.recovery.label - stock.labels[which]).abs().sum())
        assert off < 1e-3, f"seed {seed}: a wrong label was called UNIQUE, off by {off}"
    return one.label.proved


def invert(stock: Stock, seed: int) -> bool:
    """Invert a tampered share, if it can be: whatever comes, it comes as a report."""
    rng, options = np.random.default_rng(seed), Options(seconds=0.0)
    tensors = tamper(stock.shares[int(rng.integers(len(stock.shares)))], rng)
    try:
        share = sl.GradientShare(tensors, stock.subject.input_shape)
        ready = prepared(stock.subject, share, options)
    except sl.SoftleakError:
        return False
    (report,) = audit_shares(stock.subject, [NamedShare("tampered", ready)], options)
    return report.input.method == Method.INVERSION
