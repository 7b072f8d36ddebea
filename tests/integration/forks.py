"""Programs in children of one process that has imported softleak, for the tests beside this file.

Each starts from the same clean state, as in a process of its own, without importing torch again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 120  # seconds a program may take
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """A process that waits for programs and runs each in a child of its own."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, code: str, folder: Path) -> Ended:
        """The end of a program that runs in a folder, in which no other has run."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        said, complained = folder.with_suffix(".stdout"), folder.with_suffix(".stderr")
        print(json.dumps([code, *map(str, (folder, said, complained))]), file=self._server.stdin)
        self._server.stdin.flush()
        returncode = int(self._server.stdout.readline())
        return Ended(returncode, said.read_text(), complained.read_text())

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)


def _child(code: str, folder: str, *outputs: str) -> None:
    """Become the program; never returns."""
    for stream, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    signal.alarm(PATIENCE)
    os.chdir(folder)
    sys.path[0] = ""  # as `python -c` has it
    failed = 0
    try:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        failed = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        failed = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed)


def _serve() -> None:
    import softleak.cli.audit
    import softleak.labels.composition
    import softleak.matching
    import softleak.paper.models  # noqa: F401

    answers = os.fdopen(os.dup(1), "w", buffering=1)  # a program's output is a file
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _child(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)


if __name__ == "__main__":
    _serve()
