"""Draws docs/images/{show,watch}.svg and page-*.png: what people see while workers really replay to a service."""

from __future__ import annotations

import io
import re
import tempfile
import time
from pathlib import Path

from browser import chromium
from playwright.sync_api import Browser, Page
from rich.console import Console, RenderableType

from estimator_service.cli.client import InspectClient
from estimator_service.cli.demo import TRACE
from estimator_service.cli.demo_processes import DemoService, DemoWorkers
from estimator_service.cli.pair_view import pair_view
from estimator_service.cli.watch_view import LOOKS, WatchView

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

#: Decode steps a second, blocks after which the pictures are taken, seconds between two looks, columns.
SPEED, BLOCKS, LOOK_SECONDS, COLUMNS = 40.0, 16_000, 0.25, 82


def draw(view: RenderableType, command: str, path: Path) -> None:
    """One picture. It fetches nothing: the reader's own monospaced font stands in for the one rich links to."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(view)
    svg = console.export_svg(title=command, unique_id=path.stem)
    svg = re.sub(r"\s*@font-face \{.*?\}(?=\s)", "", svg, flags=re.S)
    path.write_text(svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace"))
    print(path.relative_to(IMAGES.parent.parent))


def open_pages(browser: Browser, address: str) -> dict[str, Page]:
    """The status page on a desk in light, and on a phone in dark."""
    shapes = (("page-desk", 1280, 1240, "light"), ("page-phone", 390, 844, "dark"))
    pages = {}
    for name, width, height, scheme in shapes:
        pages[name] = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages[name].goto(f"http://{address}/")
    return pages


def main() -> None:
    """Starts service and workers, looks at them until BLOCKS have come, and draws."""
    with tempfile.TemporaryDirectory() as folder:
        service = DemoService(Path(folder))
        service.start()
        workers = DemoWorkers(TRACE, service.address, 4, SPEED, Path(folder))
        try:
            with chromium() as browser, InspectClient(service.address) as client:
                while not client.pairs().pairs:
                    time.sleep(LOOK_SECONDS)
                pair = client.pairs().pairs[0].id
                pages = open_pages(browser, service.metrics_address)
                watched = WatchView(client.history(pair, LOOKS).entries)
                for state in client.watch(pair, LOOK_SECONDS):
                    watched.add(state, time.time())
                    if state.blocks >= BLOCKS:
                        draw(watched.render(), "acceptd watch smollm2", IMAGES / "watch.svg")
                        draw(
                            pair_view(state, client.workers(pair).workers, time.time()),
                            "acceptd show smollm2",
                            IMAGES / "show.svg",
                        )
                        for name, page in pages.items():
                            page.reload()
                            page.wait_for_selector("#slope path.curve")
                            page.screenshot(path=IMAGES / f"{name}.png")
                        return
        finally:
            workers.stop()
            service.stop()


if __name__ == "__main__":
    main()
