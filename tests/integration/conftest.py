from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from tests.integration.forks import Forks
from tools.browser import browser


@pytest.fixture(scope="session")
def forks():
    """Runs programs as if each had a process of its own."""
    made = Forks()
    yield made
    made.close()


@pytest.fixture(scope="session")
def chromium():
    """One browser for every page."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=browser(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()
