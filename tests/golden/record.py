"""Record the answers of today: ``python -m tests.golden.record [KIND …]``."""

from __future__ import annotations

import json
import sys
import time

from tests.golden.cases import CASES, FOLDER, answer


def main(kinds: list[str]) -> None:
    """Write the answers of some kinds, or of all, one case to a line."""
    FOLDER.mkdir(exist_ok=True)
    for kind in kinds or CASES:
        start, lines = time.perf_counter(), []
        for name in CASES[kind][0]:
            found = json.dumps(answer(kind, name), separators=(",", ":"))
            lines.append(f"{json.dumps(name)}:{found}")
        (FOLDER / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{kind}: {len(lines)} in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
