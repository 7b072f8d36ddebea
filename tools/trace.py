"""Count the modules that an audit and a guarded update pass through, and the dataclasses they make.

    python -m tools.trace            # the two counts
    python -m tools.trace --list     # and their names

A module counts if one of its functions runs; code that only an import runs does not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import torch

import softleak as sl

PACKAGE = Path(sl.__file__).parent


@dataclass
class Trace:
    """The modules whose functions ran, and the dataclasses that were made."""

    modules: set[str] = field(default_factory=set)
    dataclasses: set[str] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note one event of the interpreter."""
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # the body of a module or a class, which an import runs
        if code.co_name == "__init__" and "self" in frame.f_locals:
            kind = type(frame.f_locals["self"])
            if dataclasses.is_dataclass(kind) and kind.__module__.startswith("softleak"):
                self.dataclasses.add(f"{kind.__module__}.{kind.__qualname__}")
        path = Path(code.co_filename)
        if path.suffix == ".py" and path.is_relative_to(PACKAGE):
            self.modules.add(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


@contextlib.contextmanager
def traced() -> Iterator[Trace]:
    """Follow what the block runs."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)


def the_model() -> torch.nn.Module:
    """Return a network of two convolutions and a linear layer, the same every time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 5, padding=2, stride=2), torch.nn.Sigmoid(),
        torch.nn.Conv2d(12, 12, 5, padding=2), torch.nn.Sigmoid(), torch.nn.Flatten(),
        torch.nn.Linear(12 * 64, 10),
    ).eval()  # fmt: skip


def an_audit(folder: Path) -> Trace:
    """Trace ``softleak audit`` on one file of one sample."""
    from softleak.cli import app

    torch.save(the_model().state_dict(), folder / "model.pt")
    sl.capture(the_model(), torch.rand(1, 16, 16), 3).save(folder / "update.safetensors")
    words = ["audit", "--model", "tools.trace:the_model", "--weights", "model.pt", "--share",
             "update.safetensors", "--kind", "gradient", "--input-shape", "1,16,16"]  # fmt: skip
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as said,
        traced() as trace,
        contextlib.suppress(SystemExit),
    ):
        app([*words, "--out", "answer"])
    if not (folder / "answer" / "audit.json").exists():
        raise SystemExit(f"expected the audit to write its answer, and it said: {said.getvalue()}")
    return trace


def a_guarded_update(_: Path) -> Trace:
    """Trace a guard that is asked about one update of one sample, and refuses to send it."""
    from softleak.audit.leaks import Leak
    from softleak.guard.auditor import ClientUpdate, Question
    from softleak.guard.guard import Action, GuardPolicy, UpdateGuard

    model = the_model()
    share = sl.capture(model, torch.rand(1, 16, 16), 3)
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    after = {name: tensor - 0.1 * share[name] for name, tensor in before.items()}
    policy = GuardPolicy(Action.REFUSE, frozenset({Leak.LABEL, Leak.INPUT}))
    guard = UpdateGuard(model, policy, Question(input_shape=(1, 16, 16)))
    with traced() as trace:
        update = ClientUpdate(0, lr=0.1, received=before).sending(after, samples=1)
        outcome = guard.outcome(update, None, np.random.default_rng(0))
        if not outcome.refusal:
            raise SystemExit("expected the guard to refuse an update of one sample, and it did not")
    return trace


WALKS: dict[str, Callable[[Path], Trace]] = {"audit": an_audit, "guard": a_guarded_update}


def main() -> None:
    """Print the counts."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--list", action="store_true", help="name the modules and dataclasses")
    listed = options.parse_args().list
    for name, walk in WALKS.items():
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            walk(Path(first))  # imports what it needs
            trace = walk(Path(second))
        print(f"{name}: {len(trace.modules)} modules, {len(trace.dataclasses)} dataclasses")
        if listed:
            print("  " + "\n  ".join([*sorted(trace.modules), *sorted(trace.dataclasses)]))


if __name__ == "__main__":
    main()
