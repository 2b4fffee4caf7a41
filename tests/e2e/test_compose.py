"""docker-compose.yml without Docker: whatever it names must be in the repository, and its commands must run."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from estimator_service.config import ENV_PREFIX, Settings, load_settings, parse_address
from vllm_client_hook import config as hook_config

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}


def dockerfile(service: dict[str, Any]) -> str:
    return (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).read_text()


def settings_of(service: dict[str, Any]) -> Settings:
    return load_settings(environ={name: str(value) for name, value in service["environment"].items()})


def test_profiles_are_the_documented_ones() -> None:
    by_profile = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    assert {name for name, profiles in by_profile.items() if not profiles} == {"acceptd", "prometheus", "grafana"}
    assert by_profile["vllm"] == ["gpu"]
    assert sum(profiles == ["cpu"] for profiles in by_profile.values()) == 4


@pytest.mark.parametrize("name", BUILT)
def test_build_files_and_arguments_exist(name: str) -> None:
    service = BUILT[name]
    text = dockerfile(service)
    declared = set(re.findall(r"^ARG (\w+)", text, re.M))
    assert set(service["build"].get("args", {})) <= declared
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, f"{source} does not reach the build"


def test_images_are_pinned() -> None:
    images = [service["image"] for service in SERVICES.values()]
    for service in BUILT.values():
        text = dockerfile(service)
        stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.M))
        images += [image for image in re.findall(r"^FROM (\S+)", text, re.M) if not image.startswith("$")]
        images += re.findall(r"^ARG \w+=(\S+/\S+:\S+)", text, re.M)
        assert set(re.findall(r"--from=(\w+)|from=(\w+),", text)) <= {(s, "") for s in stages} | {
            ("", s) for s in stages
        }
    for image in images:
        tag = image.rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag), f"{image} has no pinned tag"


def test_vllm_is_one_the_hook_supports() -> None:
    tag = SERVICES["vllm"]["build"]["args"]["VLLM_IMAGE"].rpartition(":v")[2]
    assert (0, 30) <= tuple(map(int, tag.split(".")[:2])) < (0, 34)


@pytest.mark.parametrize("name", SERVICES)
def test_mounted_paths_and_volumes_exist(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source = mount.partition(":")[0]
        if source.startswith("."):
            assert (ROOT / source).exists()
            assert mount.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_alone_and_listened_on(name: str) -> None:
    service = SERVICES[name]
    ports = service.get("ports", [])
    inside = set()
    for port in ports:
        host, outside, target = port.split(":")
        assert host == "127.0.0.1"
        assert outside == target
        inside.add(int(target))
    assert not ports or "published" in service["networks"]
    assert "workers" in service["networks"]
    if name == "acceptd":
        settings = settings_of(service)
        assert settings.metrics_address is not None
        assert inside == {settings.listen_address.port, settings.metrics_address.port}
        assert inside == set(map(int, re.findall(r"^EXPOSE (.+)$", dockerfile(service), re.M)[0].split()))


def test_plain_text_is_named_and_kept_inside() -> None:
    service = SERVICES["acceptd"]
    assert settings_of(service).insecure
    assert COMPOSE["networks"]["workers"]["internal"] is True
    for name, other in SERVICES.items():
        if name.startswith("worker-"):
            assert other["networks"] == ["workers"]


def test_environment_keys_are_settings() -> None:
    for name in SERVICES["acceptd"]["environment"]:
        assert name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
    settings = settings_of(SERVICES["acceptd"])
    volume = next(v for v in SERVICES["acceptd"]["volumes"] if v.startswith("acceptd-store:"))
    assert settings.store is not None
    assert settings.store.is_relative_to(volume.partition(":")[2])
    assert str(settings.store.parent) in dockerfile(SERVICES["acceptd"])


def test_the_hooks_environment_is_taken() -> None:
    given = SERVICES["vllm"]["environment"]
    ours = {name: value for name, value in given.items() if name.startswith("ACCEPTD_")}
    settings = hook_config.load(ours)
    assert settings.address == f"acceptd:{settings_of(SERVICES['acceptd']).listen_address.port}"
    assert {f"ACCEPTD_{field.name.upper()}" for field in dataclasses.fields(settings)} >= ours.keys()
    _, *given_options = SERVICES["vllm"]["command"]
    options = dict(option.lstrip("-").split("=", 1) for option in given_options)
    additional = json.loads(without_variables(options["additional-config"]))
    assert hook_config.with_additional(settings, additional).enabled
    speculative = json.loads(without_variables(options["speculative-config"]))
    assert speculative["enable_adaptive_verification"] is True
    assert speculative["draft_sample_method"] == "probabilistic"


def without_variables(text: str) -> str:
    """Compose's ${NAME:-default} replaced by the default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_health_checks_and_dependencies() -> None:
    for name, service in SERVICES.items():
        checked = "healthcheck" in service or ("build" in service and "HEALTHCHECK" in dockerfile(service))
        assert checked, f"{name} has no health check"
        for other, condition in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert condition["condition"] == "service_healthy"


def test_prometheus_scrapes_the_service() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = [target for job in config["scrape_configs"] for c in job["static_configs"] for target in c["targets"]]
    settings = settings_of(SERVICES["acceptd"])
    assert settings.metrics_address is not None
    assert f"acceptd:{settings.metrics_address.port}" in targets
    mounted = {m.split(":")[1] for m in SERVICES["prometheus"]["volumes"]}
    configured = next(c for c in SERVICES["prometheus"]["command"] if c.startswith("--config.file="))
    assert configured.partition("=")[2] in mounted


@pytest.mark.parametrize("name", [name for name in SERVICES if name.startswith("worker-")])
def test_replaying_workers_are_called_rightly(name: str) -> None:
    """Their arguments are taken, and the trace they name is the one that is mounted."""
    service = SERVICES[name]
    trace, *options = service["command"]
    inside, outside = next((m.split(":")[1], m.split(":")[0]) for m in service["volumes"])
    assert (ROOT / outside / Path(trace).relative_to(inside)).is_file()
    address = options[options.index("--address") + 1]
    assert address == f"acceptd:{settings_of(SERVICES['acceptd']).listen_address.port}"
    parse_address(address)
    program, *arguments = service["entrypoint"]
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *arguments, trace, *options, "--help"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for option in options:
        assert not option.startswith("--") or option in done.stdout


def test_shards_cover_the_trace() -> None:
    shards = [s["command"][s["command"].index("--shard") + 1] for n, s in SERVICES.items() if n.startswith("worker-")]
    assert sorted(shards) == [f"{i}/{len(shards)}" for i in range(len(shards))]


def test_the_service_image_starts_the_service() -> None:
    text = dockerfile(SERVICES["acceptd"])
    assert 'ENTRYPOINT ["acceptd"]' in text
    assert SERVICES["acceptd"]["command"] == ["serve"]
    assert re.search(r"^USER \d+$", text, re.M), "the service runs as root"
