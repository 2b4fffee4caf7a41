"""The wheel: what is in it, what it asks for, and that a bare environment can hold the hook."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import acceptd

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {"torch", "triton", "vllm"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=110)
    return next(out.glob("acceptd-*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def names(metadata: Message, extra: str) -> set[str]:
    """What `acceptd[extra]` asks for beyond nothing."""
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return {r.name for r in found if r.marker is None or r.marker.evaluate({"extra": extra})}


def test_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        listed = archive.namelist()
    tops = {name.partition("/")[0] for name in listed if ".dist-info/" not in name}
    assert tops == {"acceptd", "estimator_service", "vllm_client_hook"}
    for needed in (
        "acceptd/v1/estimator_pb2.py",
        "acceptd/v1/inspect.proto",
        "acceptd/py.typed",
        "estimator_service/cli/entry.py",
        "estimator_service/web/page/page.css",
        "estimator_service/web/page/page.html",
        "estimator_service/web/page/page.js",
        "vllm_client_hook/replay.py",
    ):
        assert needed in listed
    assert not [name for name in listed if "test" in name.lower() and name.startswith("tests")]


def test_base_dependencies_are_what_the_hook_needs(metadata: Message) -> None:
    assert names(metadata, "") == {"grpcio", "protobuf"}
    protobuf = next(r for r in map(Requirement, metadata.get_all("Requires-Dist", [])) if r.name == "protobuf")
    for version in ("5.29.6", "6.33.0", "7.36.2"):
        assert version in protobuf.specifier
    assert "8.0" not in protobuf.specifier


@pytest.mark.parametrize("extra", ["service", "lab"])
def test_extras_bring_no_torch(metadata: Message, extra: str) -> None:
    assert not names(metadata, extra) & FORBIDDEN
    assert names(metadata, "vllm") & FORBIDDEN == {"vllm"}


def test_command_and_plugin_are_registered(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
        text = archive.read(name).decode()
    assert "acceptd = estimator_service.cli.entry:main" in text
    assert "[vllm.general_plugins]\nacceptd = vllm_client_hook.plugin:register" in text


def test_the_hook_and_the_wire_load_without_any_extra(wheel: Path) -> None:
    """Only grpcio, protobuf and numpy (which vLLM has) are let in; the service's libraries are not."""
    program = (
        "import sys\n"
        "for name in ('typer', 'rich', 'pydantic', 'prometheus_client', 'pyarrow', 'torch', 'vllm'):\n"
        "    sys.modules[name] = None\n"
        "import vllm_client_hook.plugin, vllm_client_hook.uplink, acceptd.codec\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, env={"PYTHONPATH": str(wheel)}
    )
    assert done.returncode == 0, done.stderr


def test_the_code_says_the_version_it_is_packaged_as() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == acceptd.__version__
