"""Compare two audits, to see what a change of model or defence did.

It reads the ``audit.json`` of each; updates are compared by their names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from softleak.audit.leaks import Leak
from softleak.core.errors import DataError, FileError, OptionError
from softleak.core.vocabulary import State
from softleak.io.untrusted import check_file, shown
from softleak.present.machine import FORMAT
from softleak.present.words import listed

# What a number is of, which number, and what it was before and after.
Numbers: TypeAlias = tuple[str, str, float | None, float | None]
Key = TypeVar("Key")
Held = TypeVar("Held")
MOST_NAMES = 5  # names of updates in a sentence; the JSON has all

_ENDED = (State.LEAKED, State.NO_SUCCESS)
# What became of what was known before, of one and of several. What is new is said of all at once.
_CHANGES = {
    _ENDED: (
        "leak was attacked again without success", "leaks were attacked again without success",
    ),
    (State.LEAKED, State.NOT_ATTACKED): (
        "leak is not attacked any more, so nothing shows that it ended",
        "leaks are not attacked any more, so nothing shows that they ended",
    ),
    (State.NO_SUCCESS, State.NOT_ATTACKED): (
        "attack without success was not repeated", "attacks without success were not repeated",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class StateChange:
    """One kind of leak of one update whose state differs."""

    update: str
    leak: Leak
    before: State
    after: State

    @property
    def worse(self) -> bool:
        """Return whether something leaks that did not, or is not attacked any more."""
        return self.after is not State.NO_SUCCESS


@dataclass(frozen=True)
class AuditDifference:
    """What differs between two audits."""

    settings: tuple[tuple[str, str, str], ...]  # what was audited and how: name, before, after
    counts: tuple[tuple[str, int, int], ...]  # of a kind of leak the updates, before and after
    changes: tuple[StateChange, ...]  # the states that differ
    qualities: tuple[Numbers, ...]  # how good recovered labels and inputs are, where both have one
    defences: tuple[Numbers, ...]  # the settings from which on an attack failed, where they differ
    only_before: tuple[str, ...]  # updates that the second audit does not have
    only_after: tuple[str, ...]  # updates that the first audit does not have

    @property
    def worse(self) -> bool:
        """Return whether any update got worse. Updates of only one audit cannot be compared."""
        return any(change.worse for change in self.changes)

    @property
    def words(self) -> str:
        """Return the difference in a sentence."""
        if not self.changes:
            same = "Nothing changed in what leaks from the updates that both audits have."
            return " ".join([same, *self._alone])
        # A sentence does not say why nothing was attacked.
        ends = ((c, c.after if c.after.attacked else State.NOT_ATTACKED) for c in self.changes)
        made = Counter((change.before, after) for change, after in ends)
        new = sum(change.after is State.LEAKED for change in self.changes)
        said = [
            _counted(made[states], *phrases)
            for states, phrases in _CHANGES.items()
            if made[states] or states == _ENDED
        ]
        said = [*said, _counted(new, "leak is new", "leaks are new")]
        return " ".join([f"{'; '.join(said)}.", *self._alone])

    @property
    def _alone(self) -> Iterator[str]:
        """Yield sentences on updates that only one of the audits has."""
        for which, names in (("first", self.only_before), ("second", self.only_after)):
            if names:
                verb = "it was" if len(names) == 1 else "they were"
                yield f"Only the {which} audit has {_named(names)}; {verb} not compared."


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def _named(names: Sequence[str]) -> str:
    """Return the first names of updates, and how many more there are."""
    more = len(names) - MOST_NAMES
    parts = [shown(name) for name in names[:MOST_NAMES]]
    return listed([*parts, f"{more} more"] if more > 0 else parts) or "none"


def load_audit(path: Path) -> dict[str, Any]:
    """Return the content of an ``audit.json``; raises ``FileError`` with what is wrong."""
    check_file(path)
    try:
        data = json.loads(path.read_text("utf-8"))
        reports = data["reports"]
        if data["format"] != FORMAT:
            raise FileError(
                f"{shown(path.name)} has format {data['format']!r}, this version reads {FORMAT}; "
                "run the audit again"
            )
        {r["name"]: {Leak.named(k): State(s) for k, s in r["states"].items()} for r in reports}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OptionError) as error:
        raise FileError(
            f"expected an audit.json written by softleak audit at {shown(path.name)}, got "
            f"something else ({type(error).__name__}: {error})"
        ) from error
    return dict(data)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> AuditDifference:
    """Compare the contents of two ``audit.json``; raises ``DataError`` if no update is in both."""
    one, two = ({r["name"]: r for r in data["reports"]} for data in (before, after))
    both = [name for name in one if name in two]
    if not both:
        raise DataError(
            "no update was compared, because updates are compared by name and no name is in both "
            f"audits: the first has {_named(tuple(one))}, the second {_named(tuple(two))}; give "
            "the updates the same names and audit them again"
        )
    counts = [
        (leak.value, before["counts"].get(leak.value, 0), after["counts"].get(leak.value, 0))
        for leak in Leak
    ]
    states = [(name, leak) for name in both for leak in Leak]
    changes = [
        StateChange(n, leak, _state(one[n], leak), _state(two[n], leak)) for n, leak in states
    ]
    qualities = [(_qualities(one[name]), _qualities(two[name])) for name in both]
    return AuditDifference(
        tuple(
            (name, a or "–", b or "–") for name, a, b in _differing(_facts(before), _facts(after))
        ),
        tuple(counts),
        tuple(change for change in changes if change.before is not change.after),
        tuple((*key, a, b) for pair in qualities for key, a, b in _differing(*pair)),
        tuple((*key, a, b) for key, a, b in _differing(_ends(before), _ends(after))),
        tuple(name for name in one if name not in two),
        tuple(name for name in two if name not in one),
    )


def _differing(
    one: Mapping[Key, Held], two: Mapping[Key, Held]
) -> Iterator[tuple[Key, Held | None, Held | None]]:
    """Yield each key whose values differ, and both values."""
    pairs = ((key, one.get(key), two.get(key)) for key in dict.fromkeys([*one, *two]))
    return (pair for pair in pairs if pair[1] != pair[2])


def _facts(data: Mapping[str, Any]) -> dict[str, str]:
    made = data.get("provenance") or {}
    listed = [*made.get("hashes", ()), *made.get("inputs", ()), *made.get("versions", ())]
    return {
        "model": str(data.get("model") or "–"),
        "severity": str(data.get("severity") or "–"),
        "date": str(made.get("date") or "–"),
        "command": str(made.get("command") or "–"),
        **{str(name): str(value) for name, value in listed},
    }


def _state(report: Mapping[str, Any], leak: Leak) -> State:
    return State(report["states"].get(leak.value, State.NOT_ATTACKED.value))


def _qualities(report: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    label, found = report.get("label", {}), report.get("input", {})
    return {
        (report["name"], "L1 bound of the label"): label.get("error"),
        (report["name"], "predicted PSNR of the input in dB"): found.get("psnr_predicted"),
    }


def _ends(data: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    defences = (data.get("what_if") or {}).get("defences", ())
    return {
        (d["name"], attack): end
        for d in defences
        for attack, end in d["did_not_succeed_from"].items()
    }
