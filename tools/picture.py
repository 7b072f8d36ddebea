"""Draw the README's picture: the first screen of the page `softleak audit --each 1` writes.

python -m tools.picture docs/audit.png
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools.browser import browser

WIDTH, HEIGHT = 1280, 1090


def main() -> None:
    """Run the audit and photograph its page."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        code = "from softleak.cli import app; app()"
        command = [sys.executable, "-c", code, "audit", "--each", "1", "--out", folder]
        subprocess.run(command, check=True)
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto((Path(folder) / "index.html").as_uri())
        page.screenshot(path=sys.argv[1])
        chromium.close()


if __name__ == "__main__":
    main()
