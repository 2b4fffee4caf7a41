"""MkDocs hook: files of the repository that docs/ links to travel with the site, as text.

On GitHub such a link leads to the file; a site that is read from a folder has to bring it along.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: A link out of docs/, as it is written there.
_OUTSIDE: Final = re.compile(r"\]\(\.\./([^)#\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is linked to. Raises OSError for a file that does not exist."""
    docs = Path(config.docs_dir)
    linked = {name for page in docs.rglob("*.md") for name in _OUTSIDE.findall(page.read_text())}
    for name in sorted(linked):
        files.append(File.generated(config, _place(name), content=(docs.parent / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads the links to the copies."""
    return _OUTSIDE.sub(lambda match: f"]({_place(match[1])})", markdown)


def _place(name: str) -> str:
    """Where the site has a file; as .txt, which every browser shows."""
    return f"source/{name}.txt"
