"""Triton's interpreter for tests in this process: the same preparation that an engine's processes get."""

import os
import runpy
from pathlib import Path


def install() -> None:
    """Call before triton or vLLM is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    runpy.run_path(str(Path(__file__).parent / "site" / "sitecustomize.py"))
