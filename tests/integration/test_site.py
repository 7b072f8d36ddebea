"""The site builds strictly without network, fits a telephone and can be read by everybody."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.conftest import ROOT

pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
PAGES = ("index", "start", "supported", "audit", "reference")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    settings = {"NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://localhost:9"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return built


def test_every_page_of_the_documentation_stands_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.is_file(), page.name


def test_a_page_fetches_nothing_from_elsewhere(site):
    fetched = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\s\">]+)")
    for name in PAGES:
        text = (site / f"{name}.html").read_text("utf-8")
        found = [a for a in fetched.findall(text) if "canonical" not in a]
        assert not found, (name, found)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_screen_and_axe_finds_nothing_serious(chromium, site, name, width):
    context = chromium.new_context(viewport={"width": width, "height": 900}, bypass_csp=True)
    try:
        page = context.new_page()
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page).response["violations"]
        serious = [f for f in found if f["impact"] in ("serious", "critical")]
        told = [(f["id"], [node["html"][:120] for node in f["nodes"][:3]]) for f in serious]
        assert not serious, told
    finally:
        context.close()
