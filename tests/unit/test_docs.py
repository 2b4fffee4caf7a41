"""Documentation that can be checked: links lead somewhere, and what is listed is what exists."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from estimator_service.cli.app import build
from estimator_service.config import Settings, load_settings
from vllm_client_hook.config import HookSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


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
