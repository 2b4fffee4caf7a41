"""Real service, real Prometheus, replaying workers: every panel's query and every rule, through Prometheus' API."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import ROOT, Service, serving, until

DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


class Prometheus:
    """The HTTP API at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer. Fails with Prometheus' own message, which names what does not parse."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def ask(self, expression: str) -> list[Any]:
        """The samples of an instant query."""
        return list(self.get("query", query=expression)["result"])

    @property
    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=1):
                return True
        except OSError:
            return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def scraping(service: Service, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with the configuration that is shipped: another target, and every second."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [service.metrics_address]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log)
        try:
            prometheus = Prometheus(address)
            until(lambda: prometheus.ready or process.poll() is not None)
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            yield prometheus
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, str] | None]:
    """(Prometheus after some rounds of two workers, id of their pair). None where Prometheus is not installed."""
    if shutil.which("prometheus") is None:
        assert not os.environ.get("CI"), "prometheus is missing: install Debian's package"
        yield None
        return
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        service = stack.enter_context(serving("--metrics-listen", "127.0.0.1:0", "--store", str(folder / "store")))
        prometheus = stack.enter_context(scraping(service, folder))
        for i in range(2):
            options = ("--speed", "40", "--loop")
            stack.enter_context(service.replaying(f"{i}/2", *options, worker=f"w{i}"))
        until(lambda: prometheus.ask("acceptd_refits_total > 5"), seconds=60)
        until(lambda: prometheus.ask("acceptd:observations:rate5m > 0"), seconds=30)
        until(lambda: prometheus.ask("acceptd:update_seconds:p99_5m > 0"), seconds=30)
        yield prometheus, service.json("pairs")[0]["id"]


def panels() -> list[Any]:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found.append(pytest.param(panel, id=f"{path.stem}: {panel['title']}"))
    return found


@pytest.mark.parametrize("panel", panels())
def test_each_query_of_a_panel_returns_data(asked: tuple[Prometheus, str] | None, panel: dict[str, Any]) -> None:
    assert panel["targets"]
    if asked is None:
        return
    prometheus, pair = asked
    for target in panel["targets"]:
        expression = target["expr"].replace("$pair", pair)
        assert prometheus.ask(expression), expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_marks_and_variables_of_a_dashboard_parse(asked: tuple[Prometheus, str] | None, path: Path) -> None:
    board = json.loads(path.read_text())
    if asked is None:
        return
    prometheus, pair = asked
    for mark in board.get("annotations", {}).get("list", []):
        prometheus.ask(mark["expr"].replace("$pair", pair))
    for variable in board.get("templating", {}).get("list", []):
        query = variable["query"]
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert {sample["metric"][label] for sample in prometheus.ask(metric)} == {pair}


def test_each_rule_is_evaluated_and_a_healthy_fleet_alerts_nobody(asked: tuple[Prometheus, str] | None) -> None:
    if asked is None:
        return
    prometheus, _ = asked
    until(lambda: all(rule["health"] != "unknown" for rule in rules(prometheus)))
    for rule in rules(prometheus):
        assert rule["health"] == "ok", rule
        if rule["type"] == "recording" and "verified" not in rule["name"] and "held" not in rule["name"]:
            assert prometheus.ask(rule["name"]), rule["name"]
    serious = [a for a in prometheus.get("alerts")["alerts"] if a["labels"]["severity"] != "info"]
    assert [alert for alert in serious if alert["state"] == "firing"] == []


def rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
