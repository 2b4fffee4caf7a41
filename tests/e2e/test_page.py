"""The status page in a browser: what a person sees, while a real service learns from real worker processes."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from browser import chromium
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from running import Service, acceptd, serving

from acceptd.codec import encode_pair_key
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2, estimator_pb2_grpc

#: Milliseconds for what must come to be seen: a machine under load takes its time.
PATIENCE = 30_000
PAIR = re.compile("^smollm2")
HOSTILE = "<img src=x onerror=alert(1)>"

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving("--metrics-listen", "127.0.0.1:0", "--round-min-seconds", "0", "--flush-seconds", "0.2") as running:
        running.replay("0/16", worker="replayer")
        yield running


@contextmanager
def opened(
    browser: Browser, service: Service, *, pair: re.Pattern[str] = PAIR, width: int = 1280, scheme: str = "light"
) -> Iterator[Page]:
    """The page, once it shows a pair. At the end: nothing was asked of anyone else, and the console stayed silent."""
    base = f"http://{service.metrics_address}/"
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    trouble: list[str] = []
    requests: list[str] = []

    def note(message: ConsoleMessage) -> None:
        trouble.append(f"{message.type}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(base)
        expect(page.locator("#pair-title")).to_have_text(pair)
        yield page
        assert trouble == []
        assert [url for url in requests if not url.startswith((base, "data:"))] == []
    finally:
        context.close()


def fact(page: Page, name: str) -> str:
    """The figure that stands below a name."""
    return page.locator(f"dt:text-is('{name}') + dd").evaluate("node => node.firstChild.data")


def test_it_shows_what_the_command_line_shows(browser: Browser, service: Service) -> None:
    with opened(browser, service) as page:
        expect(page.get_by_role("status")).to_have_text("live")
        state = service.json("show", "smol")
        assert fact(page, "Slope").replace("−", "-") == f"{state['coefficients']['slope']:.4f}"
        assert fact(page, "Observations") == f"{sum(state['observations_by_position']):,}"
        assert fact(page, "Refits") == f"{state['refit']['done']:,}"
        first = page.get_by_role("region", name="Positions").get_by_role("row").nth(1)
        cells = [text.replace("−", "-") for text in first.get_by_role("cell").all_inner_texts()]
        assert cells[:2] == ["0", f"{state['coefficients']['intercepts'][0]:+.4f}"]
        assert cells[4] == f"{state['observations_by_position'][0]:,}"
        reliability = page.get_by_role("img", name=re.compile("^Reliability diagram"))
        scored = [b for b in state["calibration"]["reliability"] if b["observations"] >= 10]
        expect(reliability.locator("circle")).to_have_count(len(scored))


def test_it_follows_without_being_loaded_again(browser: Browser, service: Service) -> None:
    with opened(browser, service) as page:
        page.evaluate("window.loadedOnce = true")
        before = int(fact(page, "Observations").replace(",", ""))
        path = page.locator("#slope path.curve")
        drawn = path.get_attribute("d")
        service.replay("1/16", worker="second")
        expected = sum(service.json("show", "smol")["observations_by_position"])
        assert expected > before
        expect(page.locator("dt:text-is('Observations') + dd")).to_contain_text(f"{expected:,}")
        expect(path).not_to_have_attribute("d", drawn or "")
        assert page.evaluate("window.loadedOnce") is True


def test_everything_has_a_name_and_the_keyboard_reaches_it(browser: Browser, service: Service) -> None:
    with opened(browser, service) as page:
        session = page.context.new_cdp_session(page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        named = {"link", "image", "img", "region", "navigation", "heading", "button", "article"}
        nameless = [
            node["role"]["value"]
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in named and not node.get("name", {}).get("value")
        ]
        assert nameless == []
        for name in ("Slope, ", "Intercepts, nats", "Log-loss, nats", "Reliability diagram"):
            expect(page.get_by_role("img", name=re.compile(f"^{name}"))).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the pair")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        chart = page.locator("#slope")
        expect(chart).to_be_focused()
        newest = page.locator("#slope-readout").inner_text()
        page.keyboard.press("Home")
        expect(page.locator("#slope-readout")).not_to_have_text(newest)
        expect(page.locator("#slope line.cursor")).to_have_count(1)


def test_what_an_operator_did_is_said_first(browser: Browser, service: Service) -> None:
    version = service.json("history", "smol", "-n", "1")[0]["coefficients"]["version"]
    service.acceptd("pin", "smol", f"{version['epoch']}.{version['counter']}")
    try:
        with opened(browser, service) as page:
            attention = page.get_by_role("region", name="Attention").get_by_role("listitem")
            expect(attention.first).to_contain_text("pinned to version")
    finally:
        service.acceptd("unpin", "smol")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_can_be_read_in_light_and_dark(browser: Browser, service: Service, scheme: str) -> None:
    with opened(browser, service, width=390, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        contrast = page.evaluate(
            """() => {
              const light = (colour) => {
                const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
                const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
              };
              const ground = light(getComputedStyle(document.querySelector("section")).backgroundColor);
              const against = (node) => {
                const own = light(getComputedStyle(node).color);
                return (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
              };
              return ["dd", "dt", ".readout", "th", "td", "nav a"].map((s) => against(document.querySelector(s)));
            }"""
        )
        assert min(contrast) >= 4.5  # WCAG 2.2, AA for text
        page_is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", page_is_dark)[0]) < 128) == (scheme == "dark")


def test_names_are_text_whatever_they_hold(browser: Browser, service: Service) -> None:
    messages: queue.Queue[estimator_pb2.StreamRequest | None] = queue.Queue()
    key = PairKey(HOSTILE, "<script>alert(2)</script>", 2, method="'\"><svg onload=alert(3)>")
    hello = estimator_pb2.Hello(
        pair=encode_pair_key(key), worker=HOSTILE, incarnation=7, workload="</script><b>bold</b>"
    )
    messages.put(estimator_pb2.StreamRequest(hello=hello))
    with grpc.insecure_channel(service.address) as channel:
        stream = estimator_pb2_grpc.EstimatorStub(channel).Stream(iter(messages.get, None))
        assert next(stream).WhichOneof("message") == "welcome"
        with opened(browser, service, pair=re.compile(".")) as page:
            page.get_by_role("navigation", name="Pairs").get_by_role("link", name=key.id).click()
            expect(page.locator("#pair-key")).to_contain_text(f"{HOSTILE} ← <script>alert(2)</script>")
            workers = page.get_by_role("region", name="Workers")
            expect(workers).to_contain_text(HOSTILE)
            expect(workers).to_contain_text("</script><b>bold</b>")
            assert page.locator("img, body b, script:not([type=module]), svg svg").count() == 0
            assert page.url.endswith(f"#{page.evaluate('(id) => new URLSearchParams({pair: id}).toString()', key.id)}")
        messages.put(None)


def test_it_says_when_the_service_is_gone(browser: Browser) -> None:
    with serving("--metrics-listen", "127.0.0.1:0") as running:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{running.metrics_address}/")
        expect(page.get_by_text("No worker has connected yet.")).to_be_visible()
        running.terminate()
        expect(page.get_by_role("status")).to_contain_text("no answer since")
        context.close()


def test_behind_a_token_it_follows_as_well(browser: Browser, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = acceptd("token", "new", "--name", "ana", "--role", "reader", "--tokens", str(tokens)).out.strip()
    with serving("--metrics-listen", "127.0.0.1:0", "--metrics-auth", "--tokens", str(tokens)) as running:
        base = f"http://{running.metrics_address}/"
        stranger = browser.new_context()
        assert stranger.request.get(f"{base}api/state").status == 401
        stranger.close()
        context = browser.new_context(http_credentials={"username": "ana", "password": token})
        page = context.new_page()
        answered: list[int] = []
        page.on("response", lambda response: answered.append(response.status) if "/api/state" in response.url else None)
        page.goto(base)
        expect(page.get_by_text("No worker has connected yet.")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("live")
        assert set(answered) == {200}
        context.close()
