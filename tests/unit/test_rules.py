"""Alerts and recording rules: promtool's checks, a test and a runbook section for each alert, metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
PAGE = ROOT / "docs" / "metrics.md"


@pytest.mark.parametrize("command", [("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")])
def test_promtool_passes(command: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        # The rules are read below in any case; CI installs Prometheus and must not lose this.
        assert not os.environ.get("CI"), "promtool is missing: install Debian's package prometheus"
        return
    done = subprocess.run(
        [promtool, *command], cwd=RULES.parent, check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_that_fires_it() -> None:
    tests = yaml.safe_load((RULES.parent / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_has_a_severity_and_a_section_in_the_runbook(rule: dict) -> None:
    titles = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert rule["alert"] in titles


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    titles = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)
    assert set(titles) == {rule["alert"] for rule in ALERTS}


def test_rules_and_dashboards_name_metrics_that_exist() -> None:
    exported = set(re.findall(r"^\| `(acceptd_\w+)`", PAGE.read_text(), re.M))
    histograms = {f"{name}_bucket" for name in exported if name.endswith("_seconds")}
    texts = [RULES.read_text(), *(p.read_text() for p in (ROOT / "deploy/grafana/dashboards").glob("*.json"))]
    named = {name for text in texts for name in re.findall(r"\bacceptd_\w+", text)}
    assert named - exported - histograms == set()


def test_dashboards_read_the_datasource_that_is_provisioned() -> None:
    grafana = ROOT / "deploy" / "grafana"
    (source,) = yaml.safe_load((grafana / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    for path in (grafana / "dashboards").glob("*.json"):
        panels = json.loads(path.read_text())["panels"]
        assert panels
        for panel in panels:
            assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
            assert panel["description"], panel["title"]


def test_compose_mounts_what_grafana_is_told_to_read() -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    mounted = {mount.split(":")[1]: mount.split(":")[0] for mount in service["volumes"]}
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/acceptd.yml").read_text())["providers"][0]
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    folder = mounted[provider["options"]["path"]]
    assert home.startswith(provider["options"]["path"])
    assert (ROOT / folder / Path(home).name).exists()
    assert not any("PASSWORD" in name for name in service["environment"])
