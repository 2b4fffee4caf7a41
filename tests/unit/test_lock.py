"""The locks that the images are built from: complete, within pyproject.toml's ranges, and of no one's machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("lock", "extras"), [("service", ["service"]), ("lab", ["service", "lab"])])
def test_a_lock_pins_everything_with_hashes_and_names_no_registry(lock: str, extras: list[str]) -> None:
    text = (ROOT / f"requirements-{lock}.lock").read_text()
    blocks = re.split(r"\n(?=\S)", text.partition("\n")[2].strip())
    pinned = {}
    for block in blocks:
        found = re.fullmatch(r"([\w.-]+)==([\w.]+)(?: ;[^\n]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", block)
        assert found, block[:100]
        pinned[canonicalize_name(found[1])] = found[2]
    wanted = list(PROJECT["dependencies"])
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{requirement}: run `make lock`"
        assert requirement.specifier.contains(pinned[name], prereleases=True), f"{requirement}: run `make lock`"
    assert not re.search(r"https?:|file:|--index|--find-links|@", text)
