"""How the command fails: exit status, one line on stderr, nothing on stdout, never a traceback."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from estimator_service.cli.app import build, run

ACCEPTD = [sys.executable, "-c", "import sys; from estimator_service.cli.entry import main; sys.exit(main())"]


def acceptd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ACCEPTD, *arguments], check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["show"],
        ["pairs", "--bogus"],
        ["pairs", "--address", "nowhere"],
        ["pairs", "--address", "127.0.0.1:70000"],
        ["history", "x", "--limit", "0"],
        ["watch", "x", "--interval", "0"],
    ],
)
def test_misuse_is_exit_2(arguments: list[str]) -> None:
    done = acceptd(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "acceptd" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["pairs"], ["show", "x"], ["watch", "x", "--once"], ["history", "x"], ["workers"]]
)
def test_no_service_is_exit_1_and_says_what_to_do(arguments: list[str], dead_address: str) -> None:
    for extra in ([], ["--json"]):
        done = acceptd(*arguments, "--address", dead_address, *extra)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
        assert dead_address in done.stderr
        assert "acceptd serve" in done.stderr


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(command.name) for command in build().registered_commands]
    assert {"serve", "pairs", "show", "watch", "history", "workers", "demo", "version"} <= set(names)
    for name in names:
        assert run([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert "Examples:" in text
        assert f"acceptd {name}" in text


def test_a_missing_extra_is_one_line() -> None:
    hide = "import sys; sys.modules['typer'] = None; from estimator_service.cli.entry import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", hide], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == 'error: typer is not installed; the acceptd command needs: pip install "acceptd[service]"\n'
