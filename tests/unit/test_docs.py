"""Documentation that can be checked: links lead somewhere, and what is listed is what exists."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimator_service.cli.app import build
from estimator_service.config import Settings, load_settings
from vllm_client_hook.config import HookSettings

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"acceptd": ROOT / "proto", "estimator_service": ROOT, "vllm_client_hook": ROOT}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def examples() -> Iterator[Any]:
    """Docstrings that show what comes out, of cached properties, too, which doctest itself does not find."""
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if re.search(r"^\s*>>> ", text := ast.get_docstring(node) or "", re.M):
                    yield pytest.param(module, text, id=f"{module}.{getattr(node, 'name', '')}")


@pytest.mark.parametrize(("module", "text"), list(examples()))
def test_what_docstrings_show_comes_out(module: str, text: str) -> None:
    names = dict(vars(importlib.import_module(module)))
    found = doctest.DocTestParser().get_doctest(text, names, module, None, 0)
    assert doctest.DocTestRunner().run(found).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, f"docs/README.md does not list {page.name}"


def test_every_command_is_in_the_list_of_commands() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    listed = set(re.findall(r"^\| `acceptd ([a-z-]+)", text, re.M))
    app = build()
    assert listed == {found.name for found in (*app.registered_commands, *app.registered_groups)}


def test_the_example_of_a_configuration_file_loads() -> None:
    settings = load_settings(config=ROOT / "examples" / "acceptd.toml", environ={})
    assert settings == Settings(store=Path("acceptd.sqlite"))  # it shows the defaults, and a store


def test_every_hook_setting_is_described() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text().partition("## Hook")[2].partition("## Commands")[0]
    rows = dict(re.findall(r"^\| `ACCEPTD_([A-Z0-9_]+)` \| (.+?) \|", text, re.M))
    defaults = {field.name.upper(): field.default for field in dataclasses.fields(HookSettings)}
    assert rows.keys() == defaults.keys()
    for name, value in defaults.items():
        shown = "–" if value == "" else f"`{str(value).lower()}`" if isinstance(value, bool | str) else f"`{value:g}`"
        assert rows[name] == shown


def test_every_service_setting_is_described() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+)` \|", text, re.M)) == set(Settings.model_fields)
