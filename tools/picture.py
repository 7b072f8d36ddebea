"""Draw the pictures of pages in the docs.

python -m tools.picture docs/audit.png                          # of `softleak audit --each 1`
python -m tools.picture docs/flower.png federation/index.html   # of a page that is there, shortened
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools.browser import browser

WIDTH, HEIGHT = 1280, 1560
NARROW = 1100
SHORTEN = """
for (const list of document.querySelectorAll(".cards"))
  [...list.children].slice(4).forEach(card => card.remove());
for (const table of document.querySelectorAll(".scroll")) {
  if (table.previousElementSibling?.tagName === "H3") table.previousElementSibling.remove();
  table.remove();
}
document.querySelectorAll("details, footer").forEach(part => part.remove());
"""


def main() -> None:
    """Photograph the first screen of an audit, or a page from top to bottom."""
    out, *given = sys.argv[1:]
    if given:
        shoot(Path(given[0]), out, whole=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        code = "from softleak.cli import app; app()"
        command = [sys.executable, "-c", code, "audit", "--each", "1", "--out", folder]
        subprocess.run(command, check=True)
        shoot(Path(folder) / "index.html", out, whole=False)


def shoot(path: Path, out: str, *, whole: bool) -> None:
    """A picture of a page: its first screen, or all of it but tables and further examples."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        width = NARROW if whole else WIDTH
        page = chromium.new_page(viewport={"width": width, "height": HEIGHT})
        page.goto(path.resolve().as_uri())
        if whole:
            page.evaluate(SHORTEN)
        page.screenshot(path=out, full_page=whole)
        chromium.close()


if __name__ == "__main__":
    main()
