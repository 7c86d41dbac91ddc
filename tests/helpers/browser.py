"""A page of the system's Chromium."""

import shutil
from contextlib import contextmanager

import pytest


@contextmanager
def browsed(address, logs=(), **about):
    """Yields a page at an address; what it logs, but for lines with `logs`, fails the test."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no Chromium")
    failures, lines = [], []
    with (
        sync_api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(**about)
        page.on("console", lambda message: lines.append(message))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(address)
        yield page
        # Others are advice.
        failures += [line.text for line in lines if line.type in ("error", "warning")]
    unexpected = [line for line in failures if not any(part in line for part in logs)]
    assert not unexpected, unexpected
