"""How the command fails: exit status, one line on stderr, nothing on stdout, never a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from running import acceptd, until

from estimator_service.cli.app import build


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
    assert done.status == 2
    assert done.out == ""
    assert "acceptd" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments", [["pairs"], ["show", "x"], ["watch", "x", "--once"], ["history", "x"], ["workers"]]
)
def test_no_service_is_exit_1_and_says_what_to_do(arguments: list[str], dead_address: str) -> None:
    for extra in ([], ["--json"]):
        done = acceptd(*arguments, "--address", dead_address, *extra)
        assert done.status == 1
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert len(done.err.splitlines()) == 1
        assert dead_address in done.err
        assert "acceptd serve" in done.err


def test_the_installed_command_ends_with_that_status(dead_address: str) -> None:
    for arguments, status in ((["bogus"], 2), (["pairs", "--address", dead_address], 1), (["version"], 0)):
        command = [sys.executable, "-m", "estimator_service.cli", *arguments]
        assert subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == status


def test_every_command_explains_itself_with_an_example() -> None:
    names = [str(command.name) for command in build().registered_commands]
    assert {"serve", "pairs", "show", "watch", "history", "workers", "demo", "version"} <= set(names)
    for name in names:
        done = acceptd(name, "--help")
        assert done.status == 0
        assert "Examples:" in done.out
        assert f"acceptd {name}" in done.out


def test_a_missing_extra_is_one_line() -> None:
    hide = "import sys; sys.modules['typer'] = None; from estimator_service.cli.entry import main; main()"
    done = subprocess.run([sys.executable, "-c", hide], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == 'error: typer is not installed; the acceptd command needs: pip install "acceptd[service]"\n'


def test_a_crash_of_native_code_at_the_end_of_the_process_does_not_become_the_command_s() -> None:
    # A destructor that aborts, registered as those of C++ libraries are.
    crash = "import ctypes; libc = ctypes.CDLL(None); libc.__cxa_atexit(libc.abort, None, None)"
    assert subprocess.run([sys.executable, "-c", crash], check=False, timeout=60).returncode == -signal.SIGABRT
    command = [sys.executable, "-c", f"{crash}; from estimator_service.cli.entry import main; main()", "version"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == acceptd("version").out


def test_output_that_cannot_be_written_is_one_line_and_a_failure() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "estimator_service.cli", "version", "--json"]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "No space left on device" in line


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["version", "version --json", "bogus"])
def test_closed_streams_change_no_status(arguments: str, closed: str) -> None:
    command = f"{sys.executable} -m estimator_service.cli {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if arguments == "bogus" else 0)
    assert "Traceback" not in done.stderr


def test_a_service_without_standard_streams_serves(tmp_path: Path, dead_address: str) -> None:
    store = tmp_path / "acceptd.db"
    serve = f"exec {sys.executable} -m estimator_service.cli serve --listen {dead_address} --metrics-listen '' "
    with subprocess.Popen(["sh", "-c", f"{serve} --store {store} <&- >&- 2>&-"]) as process:
        until(lambda: acceptd("pairs", "--address", dead_address).status == 0)
        process.terminate()
        assert process.wait(20) == 0
    assert store.read_bytes().startswith(b"SQLite format 3")


def test_a_reader_that_has_enough_ends_a_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "estimator_service.cli", "version"]
    done = subprocess.run(command, check=False, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
