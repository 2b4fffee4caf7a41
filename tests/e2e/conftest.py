"""The page's tests need a browser. In CI its absence is a failure; elsewhere they are left out, and that is said."""

from __future__ import annotations

import os
import shutil

import pytest
from browser import NAMES

NO_BROWSER = not os.environ.get("CI") and not any(map(shutil.which, NAMES))
collect_ignore = ["test_page.py"] if NO_BROWSER else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NO_BROWSER:
        terminalreporter.line("tests/e2e/test_page.py was left out: no Chromium on PATH (apt-get install chromium)")
