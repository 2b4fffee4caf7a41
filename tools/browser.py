"""Headless Chromium, as Debian ships it, driven over its own protocol."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

#: What a test machine may have it as. Nothing is downloaded: Playwright's own browsers are not used.
NAMES = ("chromium", "chromium-browser", "google-chrome")

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def executable() -> str:
    """Path of the browser. Fails where there is none: without it the page is not tested."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "no Chromium on PATH; on Debian: apt-get install chromium"
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, which Playwright keeps in a fresh folder."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), args=list(FLAGS), downloads_path=folder, timeout=60_000
        )
        try:
            yield browser
        finally:
            browser.close()
