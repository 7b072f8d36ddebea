"""Try the other Pythons that softleak supports, where they are found, and say what was done.

python -m tools.pythons [--install]

Every file is compiled by each of them, which costs a second. Where torch is at hand, a smoke of the
tests runs too. Torch is fetched if its pinned build without CUDA exists for that Python; the one
with CUDA is several gigabytes and is fetched only on ``--install``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.12", "3.13")
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
# A head, a share, a recovered label and an inverted network: what a caller does first.
SMOKE = (
    "tests/unit/test_head.py",
    "tests/unit/test_share.py",
    "tests/unit/labels/test_pseudo.py",
    "tests/unit/inversion/test_activation_step.py",
    "tests/unit/inversion/test_chain.py",
)
NEEDED = ("pytest>=8", "hypothesis>=6.100")
IMPATIENT = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "10")
PATIENCE = 1200  # seconds that one command may take

COMPILE = "import pathlib, sys; [compile(p.read_bytes(), str(p), 'exec') for f in sys.argv[1:] \
for p in pathlib.Path(f).rglob('*.py')]"


def interpreter(version: str) -> Path | None:
    """Find this version on the path or among pyenv's; a shim of pyenv that does not run is none."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(name), *sorted(pyenv.glob(f"{version}.*/bin/{name}"), reverse=True)]
    return next((Path(p) for p in places if p and _runs([str(p), "-c", "import venv"])), None)


def attempt(version: str, python: Path, *, install: bool) -> tuple[bool, str]:
    """Compile every file and run the smoke if torch is there; whether it went well, and a line."""
    compiled = _run([str(python), "-c", COMPILE, *FOLDERS])
    if compiled.returncode:
        return False, f"Python {version} does not compile the code: {_last(compiled)}"
    own = ROOT / f".venv-{version}" / "bin" / "python"
    chosen = next((p for p in (own, python) if _has_torch(p)), None)
    if chosen is None and not _given_torch(own, python, install=install):
        return True, (
            f"Python {version} compiles every file; the tests were not run in it, since pip finds "
            f"no build of {_pinned()} without CUDA for it (`make pythons` fetches the large one)"
        )
    done = _run([str(chosen or own), "-m", "pytest", "-m", "not slow", *SMOKE])
    return done.returncode == 0, f"Python {version}: {_last(done)}"


def _has_torch(python: Path) -> bool:
    return python.exists() and _runs([str(python), "-c", "import torch, pytest, hypothesis"])


def _given_torch(own: Path, python: Path, *, install: bool) -> bool:
    """Install into an environment of its own, if torch is small or was asked for."""
    small = [str(python), "-m", "pip", "install", "--dry-run", "--no-deps", *IMPATIENT]
    torch = f"{_pinned()}+cpu"
    if not _runs([*small, "--only-binary=:all:", "--ignore-installed", torch]):
        if not install:
            return False
        torch = _pinned()
    return _runs([str(python), "-m", "venv", str(own.parents[1])]) and _runs(
        [str(own), "-m", "pip", "install", *IMPATIENT, torch, *NEEDED, "--editable", ".[images]"]
    )


def _pinned() -> str:
    """``torch==`` as in the constraints."""
    found = re.search(r"^torch==[\d.]+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("constraints.txt no longer pins torch==…, which tools.pythons reads there")
    return found[0]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    alone.pop("PYTHONPATH", None)
    return subprocess.run(
        command, cwd=ROOT, env={**alone, "PYTHONPATH": str(ROOT / "src")}, check=False,
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


def _runs(command: Sequence[str]) -> bool:
    return _run(command).returncode == 0


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"ended with {done.returncode}"


def main() -> None:
    """Print a line for every version; fail if one was tried and something went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--install", action="store_true", help="fetch torch even if it is large")
    given = parser.parse_args()
    well = True
    for version in VERSIONS:
        if (python := interpreter(version)) is None:
            print(f"Python {version} was not found, so nothing was tried in it")
            continue
        good, line = attempt(version, python, install=given.install)
        print(line, flush=True)
        well = well and good
    sys.exit(not well)


if __name__ == "__main__":
    main()
