"""Make sure there is a Chromium to test the page in, and say where.

python -m tools.browser
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 600  # seconds a download may take


def browser() -> Path:
    """A Chromium: the system's, or else one that is fetched now."""
    tried: list[str] = []
    for name, fetch in _SOURCES.items():
        found = fetch()
        if found is not None:
            return found
        tried.append(name)
    raise SystemExit(
        f"the page's tests need a Chromium and there is none ({'; '.join(tried)}). Install one "
        "(apt-get install chromium, or python -m playwright install --with-deps chromium)."
    )


def _on_path() -> Path | None:
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


def _by_playwright() -> Path | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    if not path.exists():
        _tried([sys.executable, "-m", "playwright", "install", "--with-deps", "chromium"])
    return path if path.exists() else None


def _by_apt() -> Path | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    _tried(["apt-get", "update", "-q"])
    _tried(["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"])
    return _on_path()


def _tried(command: Sequence[str]) -> None:
    print(f"no Chromium yet: {' '.join(command)}", file=sys.stderr)
    subprocess.run(command, check=False, timeout=PATIENCE, stdout=sys.stderr)


_SOURCES: dict[str, Callable[[], Path | None]] = {
    "not on the path": _on_path,
    "not by apt-get, which needs root": _by_apt,
    "not by playwright": _by_playwright,
}

if __name__ == "__main__":
    print(browser())
