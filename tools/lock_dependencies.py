"""Pins the packages of the images with the hashes of their files: requirements-*.lock from pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Lock → the extras it is for.
LOCKS = {"requirements-service.lock": ("service",), "requirements-lab.lock": ("service", "lab")}
PIP_TOOLS = "pip-tools==7.5.1"


def lock(python: Path, extras: tuple[str, ...]) -> str:
    """Every package of acceptd with these extras, for the interpreter's version and any platform."""
    command = [python, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--strip-extras"]
    # Where packages come from is the installer's business: no index, no options, no machine's paths.
    command += ["--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"]
    command += ["--no-emit-options", "--no-annotate", *(f"--extra={extra}" for extra in extras)]
    command += ["--output-file", "-", "pyproject.toml"]
    packages = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    name = f"acceptd[{','.join(extras)}]"
    return f"# {name}: every package pinned, with the hashes of its files. Made by `make lock`.\n{packages}"


def main() -> int:
    """Writes the locks."""
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        python = Path(scratch) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", PIP_TOOLS], check=True)
        for name, extras in LOCKS.items():
            (ROOT / name).write_text(lock(python, extras))
    return 0


if __name__ == "__main__":
    sys.exit(main())
