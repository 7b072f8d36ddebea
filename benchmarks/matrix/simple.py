"""What one line of arithmetic reads from an update, whatever the loss; the truth decides if it is.

An audit that shows green although one of these succeeds calls safe what is not.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.matrix.updates import Sent
from softleak.audit import Leak
from softleak.core.subject import Subject

NEAR = 0.1  # the relative error up to which a vector is read; 20 dB
FEATURE_NEAR = 0.01
READ = 0.5  # the part of an input's entries that have to be read, where others were removed
MOVED = 10.0  # a row of a table this many times the median moved
WORDS_READ = 0.8  # the part of the words that has to be read


def simple_leaks(subject: Subject, sent: Sent) -> dict[Leak, str]:
    """Return what leaks in the simplest way, with how."""
    found: dict[Leak, str] = {}
    if _classes_read(subject, sent):
        found[Leak.COMPOSITION] = "signs of the head's bias"
        if len(sent.data.x) == 1 and len(sent.data.classes) == 1:
            found[Leak.CLASS] = "the class alone has its sign in the head's bias"
    head = subject.head.weight_name.rpartition(".")[0]
    if len(sent.data.x) == 1:
        if _quotient_off(sent, head, sent.features[0]) <= FEATURE_NEAR:
            found[Leak.FEATURE] = "one division at the head"
        first = _first_linear(subject.model)
        x = sent.data.x[0].flatten()
        if first and x.is_floating_point() and _quotient_off(sent, first, x) <= NEAR:
            found[Leak.INPUT] = "one division at the first layer"
    if not sent.data.x.is_floating_point() and _words_read(subject, sent):
        found[Leak.INPUT] = "rows of the table that moved are the words"
    return found


def _classes_read(subject: Subject, sent: Sent) -> bool:
    """Return whether the entries of one sign of the head's bias are true classes, and few.

    Which sign it is depends on who subtracted what; the rarer one is read.
    """
    name, classes = subject.head.bias_name, sent.data.classes
    if not subject.head.has_bias or name not in sent.share:
        return False
    delta = sent.share[name].double()
    if len(classes) > len(delta) / 2:
        return False  # a guess would do as well
    least = 1e-3 * float(delta.abs().max())
    below = frozenset((delta < -least).nonzero()[:, 0].tolist())
    above = frozenset((delta > least).nonzero()[:, 0].tolist())
    odd = min(below, above, key=len) if below and above else below or above
    return bool(odd) and odd <= classes and len(odd) <= len(delta) / 2


def _quotient_off(sent: Sent, layer: str, true: Tensor) -> float:
    """Return how far ``∂W/∂b`` of the row with the largest ``∂b`` is from what entered a layer.

    Entries that are exactly zero count as removed, as long as half of the input is left.
    """
    weight, bias = (sent.share.get(f"{layer}.{one}") for one in ("weight", "bias"))
    if weight is None or bias is None or not bool(bias.any()) or weight.ndim != 2:
        return float("inf")
    rows = bias.double().abs().topk(min(8, len(bias))).indices.tolist()
    return min((_row_off(weight[i].double(), float(bias[i]), true.double()) for i in rows
                if float(bias[i])), default=float("inf"))  # fmt: skip


def _row_off(row: Tensor, divisor: float, true: Tensor) -> float:
    kept = row != 0
    if len(row) != len(true) or float(kept.double().mean()) < READ:
        return float("inf")
    at = kept | (true == 0)
    off = row[at] / divisor - true[at]
    return float(off.norm() / true[at].norm().clamp_min(1e-12))


def _first_linear(model: nn.Module) -> str:
    """Return the linear layer that takes the input itself, if the model begins with one."""
    modules = dict(model.named_modules())
    first = next((n for n, m in modules.items() if not list(m.children()) and list(m.parameters())))
    return first if isinstance(modules[first], nn.Linear) else ""


def _words_read(subject: Subject, sent: Sent) -> bool:
    """Return whether the rows of the word table that moved are nearly all words, and no others."""
    tables = [(n, m) for n, m in subject.model.named_modules() if isinstance(m, nn.Embedding)]
    name, table = max(tables, key=lambda one: one[1].num_embeddings)
    gradient = sent.share.get(f"{name}.weight")
    if gradient is None:
        return False
    sizes = gradient.double().norm(dim=1)
    moved = set((sizes > MOVED * sizes.median()).nonzero()[:, 0].tolist()) if sizes.any() else set()
    true = set(sent.data.x.flatten().tolist())
    few = len(true) < table.num_embeddings / 2
    return few and moved <= true and len(moved) >= WORDS_READ * len(true)
