"""Operators' commands against a real service that asks for TLS and tokens."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from running import ENVIRONMENT, TRACE, Done, acceptd, serving

from acceptd.identity import Identity
from acceptd.v1 import inspect_pb2
from estimator_service.access.tokens import digest_of
from estimator_service.cli.target import Target
from estimator_service.cli.transfer import MAGIC, file_name


@dataclass(frozen=True)
class Secured:
    """A running service and what its clients need."""

    address: str
    directory: Path

    def flags(self, who: str) -> list[str]:
        flags = ["--address", self.address, "--ca", str(self.directory / "ca.pem")]
        return [*flags, "--token-file", str(self.directory / f"{who}.token")]

    def run(self, who: str, *arguments: str) -> Done:
        return acceptd(*arguments, *self.flags(who))

    def json(self, who: str, *arguments: str):
        done = self.run(who, *arguments, "--json")
        assert done.status == 0, done.err
        return json.loads(done.out)

    @property
    def store(self) -> Path:
        return self.directory / "store.sqlite"


def new_token(directory: Path, name: str, *flags: str) -> str:
    done = acceptd("token", "new", "--name", name, "--tokens", str(directory / "tokens"), *flags)
    assert done.status == 0, done.err
    (directory / f"{name}.token").write_text(done.out)
    return done.out.strip()


def make_identities(directory: Path) -> list[str]:
    """Files of a certificate and three tokens; the flags of a service that asks for them."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    made.private_key_pem.write_to_path(directory / "key.pem")
    made.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    new_token(directory, "rack1", "--role", "worker", "--pairs", "smollm2*", "--pairs", "other*")
    new_token(directory, "ana", "--role", "reader")
    new_token(directory, "olga", "--role", "operator")
    files = {"tls-cert": "cert.pem", "tls-key": "key.pem", "tokens": "tokens", "store": "store.sqlite"}
    return [part for flag, name in files.items() for part in (f"--{flag}", str(directory / name))]


def replay(service: Secured, who: str) -> subprocess.CompletedProcess[str]:
    """A worker process with the token of `who`."""
    environment = {
        **ENVIRONMENT,
        "ACCEPTD_CA_FILE": str(service.directory / "ca.pem"),
        "ACCEPTD_TOKEN_FILE": str(service.directory / f"{who}.token"),
    }
    command = [sys.executable, "-m", "vllm_client_hook.replay", str(TRACE), "--address", service.address]
    command += ["--worker", who, "--shard", "0/8"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, env=environment)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    flags = make_identities(directory)
    rounds = ["--round-blocks", "300", "--round-min-seconds", "0", "--round-seconds", "3600"]
    with serving("--metrics-listen", "", "--publish-min-change", "0", *rounds, *flags) as running:
        secured = Secured(running.address, directory)
        fed = replay(secured, "rack1")
        assert fed.returncode == 0, fed.stderr
        yield secured


def test_a_token_is_printed_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    first, second = new_token(tmp_path, "a", "--role", "reader"), new_token(tmp_path, "b", "--role", "operator")
    path = tmp_path / "tokens"
    text = path.read_text()
    assert first not in text
    assert second not in text
    assert [line.split() for line in text.splitlines()] == [
        ["a", "reader", "*", f"sha256:{digest_of(first).hex()}"],
        ["b", "operator", "*", f"sha256:{digest_of(second).hex()}"],
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first != second


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--name", "a b", "--role", "reader"], "name is not accepted"),
        (["--name", "a reader * sha256:" + "0" * 64 + "\nolga", "--role", "operator"], "name is not accepted"),
        (["--name", "a", "--role", "worker", "--pairs", "x y"], "pairs are not accepted"),
        (["--name", "a", "--role", "worker", "--pairs", "#"], "pairs are not accepted"),
        (["--name", "a", "--role", "reader", "--pairs", "x"], "--pairs"),
        (["--name", "a", "--role", "king"], "operator"),
    ],
)
def test_a_token_that_the_file_cannot_hold_is_not_made(tmp_path: Path, flags: list[str], part: str) -> None:
    done = acceptd("token", "new", "--tokens", str(tmp_path / "tokens"), *flags)
    assert done.status != 0
    assert part in done.err
    assert done.out == ""
    assert not (tmp_path / "tokens").exists()


def test_without_a_token_or_trust_a_command_says_what_it_needs(service: Secured) -> None:
    address = ["--address", service.address]
    ca = ["--ca", str(service.directory / "ca.pem")]
    done = acceptd("pairs", *address, *ca)
    assert done.status == 1
    assert "--token-file" in done.err
    stranger = service.directory / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    done = acceptd("pairs", *address, "--ca", str(stranger))
    assert done.status == 1
    assert "TLS handshake" in done.err
    done = acceptd("pairs", *address)
    assert done.status == 1
    assert "closed the connection" in done.err
    assert "--ca" in done.err
    for flags in (["--cert", "x"], ["--ca", "/nowhere"], ["--token-file", "/nowhere"]):
        done = acceptd("pairs", *address, *flags)
        assert done.status == 1
        assert flags[0] in done.err
    two = service.directory / "two.token"
    two.write_text("one\ntwo\n")
    done = acceptd("pairs", *address, *ca, "--token-file", str(two))
    assert done.status == 1
    assert "holds no token" in done.err
    assert "one" not in done.err.replace("with one", "")


def test_a_token_in_the_clear_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = new_token(tmp_path, "a", "--role", "reader")
    file = str(tmp_path / "a.token")
    for address, warned in (("127.0.0.1:1", False), ("[::1]:1", False), ("10.0.0.7:1", True), ("rack1:1", True)):
        assert Target(address, Identity(file)).metadata() == (("authorization", f"Bearer {token}"),)
        said = capsys.readouterr().err
        assert ("in the clear" in said) == warned
        assert token not in said
    Target("rack1:1", Identity(file, ca_file="x")).metadata()
    assert capsys.readouterr().err == ""


def test_the_environment_names_the_files_as_for_the_hook(service: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEPTD_ADDRESS", service.address)
    monkeypatch.setenv("ACCEPTD_CA_FILE", str(service.directory / "ca.pem"))
    monkeypatch.setenv("ACCEPTD_TOKEN_FILE", str(service.directory / "ana.token"))
    done = acceptd("pairs", "--json")
    assert done.status == 0, done.err
    assert len(json.loads(done.out)) == 1


def test_readers_look_and_change_nothing(service: Secured) -> None:
    assert service.json("ana", "show", "smol")["pinned"] is None
    for arguments in (["rollback", "smol"], ["reset", "smol", "--yes"], ["mode", "smol", "off"]):
        done = service.run("ana", *arguments)
        assert done.status == 1
        assert "token ana has the role reader" in done.err
    done = service.run("rack1", "pairs")
    assert done.status == 1
    assert "token rack1 has the role worker" in done.err
    token = (service.directory / "ana.token").read_text().strip()
    assert token not in done.err


def test_rollback_pin_and_unpin(service: Secured) -> None:
    history = service.json("ana", "history", "smol", "-n", "100")
    in_force, before = history[0]["coefficients"], history[1]["coefficients"]
    state = service.json("olga", "rollback", "smol")
    assert state["not_on_disk"] is None
    assert state["coefficients"]["intercepts"] == before["intercepts"]
    assert state["version"] == state["coefficients"]["version"]
    assert state["version"]["counter"] > in_force["version"]["counter"]
    assert "pinned" in service.run("ana", "show", "smol").out
    newest = service.json("ana", "history", "smol", "-n", "1")[0]
    assert (newest["cause"], newest["origin"]) == ("rollback", before["version"])
    first = f"{in_force['version']['epoch']}.{in_force['version']['counter']}"
    state = service.json("olga", "pin", "smol", first)
    assert state["coefficients"]["intercepts"] == in_force["intercepts"]
    assert f"pin of {first}" in service.run("ana", "history", "smol").out
    assert service.json("olga", "unpin", "smol")["pinned"] is None
    done = service.run("olga", "unpin", "smol")
    assert (done.status, "not pinned" in done.err) == (1, True)
    assert service.run("olga", "pin", "smol", "newest").status == 2
    done = service.run("olga", "pin", "smol", "9.9")
    assert (done.status, "history" in done.err) == (1, True)


def test_mode_and_exploration(service: Secured) -> None:
    state = service.json("olga", "mode", "smol", "shadow", "--exploration", "0.125")
    assert (state["mode"], state["exploration_rate"]) == ("shadow", 0.125)
    assert "mode shadow, 12.5 % explored" in service.run("olga", "mode", "smol", "shadow").out
    assert service.json("olga", "mode", "smol", "trim")["exploration_rate"] == 0.125
    for arguments in (["mode", "smol"], ["mode", "smol", "on"], ["mode", "smol", "--exploration", "2"]):
        assert service.run("olga", *arguments).status == 2


def test_the_audit_names_who_did_what(service: Secured) -> None:
    service.json("olga", "mode", "smol", "off")
    service.json("olga", "mode", "smol", "trim")
    newest, other = service.json("ana", "audit", "-n", "2")
    assert (newest["who"], newest["action"]) == ("olga", "mode")
    assert newest["before"]["mode"] == other["after"]["mode"] == "off"
    assert newest["after"]["mode"] == "trim"
    assert newest["pair"] == service.json("ana", "show", "smol")["id"]
    assert "mode off → trim" in service.run("ana", "audit").out
    assert service.json("ana", "audit", "--pair", "smol", "-n", "1")[0] == newest


def test_an_export_is_taken_up_elsewhere(service: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = service.json("ana", "show", "smol")
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        done = service.run("ana", "export", "smol")
        assert done.status == 0, done.err
        done = service.run("ana", "export", "smol")
        assert (done.status, "--force" in done.err) == (1, True)
    (file,) = tmp_path.iterdir()
    assert file.name == f"{shown['id']}.acceptd"
    with serving("--metrics-listen", "") as other:
        state = other.json("import", str(file))
        assert state["coefficients"]["intercepts"] == shown["coefficients"]["intercepts"]
        assert state["observations_by_position"] == shown["observations_by_position"]
        done = acceptd("import", str(file), "--address", other.address)
        assert (done.status, "known already" in done.err) == (1, True)
        other.acceptd("import", str(file), "--replace")
        for content in (b"", MAGIC, MAGIC + b"\xff", file.read_bytes()[:-9]):
            broken = tmp_path / "broken"
            broken.write_bytes(content)
            done = acceptd("import", str(broken), "--address", other.address, "--replace")
            assert done.status == 1
            assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "id_",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        "~root/x",
        "a/../../b",
        "x\x00y",
        "-rf",
        "",
        "…" * 300,
        "a" * 500,
        "c:\\x",
    ],
)
def test_no_id_leads_an_export_out_of_its_directory(tmp_path: Path, id_: str) -> None:
    name = file_name(id_)
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    assert name.endswith(".acceptd")
    assert not name.startswith(("-", "~"))
    (tmp_path / name).write_bytes(b"")


def test_backup_and_restore(service: Secured, tmp_path: Path) -> None:
    shown = service.json("ana", "show", "smol")
    copy = tmp_path / "copy.sqlite"
    done = acceptd("backup", str(copy), "--store", str(service.store), "--json")
    assert json.loads(done.out)["pairs"] == 1, done.err
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    done = acceptd("restore", str(copy), "--store", str(service.store))
    assert (done.status, "in use" in done.err) == (1, True)
    store = tmp_path / "store.sqlite"
    done = acceptd("restore", str(copy), "--store", str(store), "--json")
    assert json.loads(done.out) == {"store": str(store), "copy": str(copy), "pairs": 1, "kept": None}
    with serving("--metrics-listen", "", "--store", str(store)) as restored:
        again = restored.json("show", "smol")
        assert again["coefficients"]["intercepts"] == shown["coefficients"]["intercepts"]
        assert again["observations_by_position"] == shown["observations_by_position"]
        assert restored.json("audit", "-n", "1") == service.json("ana", "audit", "-n", "1")
        assert restored.terminate() == 0
    done = acceptd("restore", str(copy), "--store", str(store), "--json")
    kept = Path(json.loads(done.out)["kept"])
    with sqlite3.connect(kept) as reader:
        assert reader.execute("SELECT count(*) FROM pairs").fetchone() == (1,)


def test_what_is_no_copy_is_not_restored(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    store.write_bytes(b"precious")
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    torn = tmp_path / "torn"
    torn.write_bytes(b"SQLite format 3\x00" + os.urandom(5000))
    foreign = tmp_path / "foreign"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE x (y)")
    for copy in (empty, torn, foreign, tmp_path / "none", tmp_path):
        done = acceptd("restore", str(copy), "--store", str(store))
        assert done.status == 1
        assert done.err.count("\n") == 1
        assert store.read_bytes() == b"precious"
    done = acceptd("backup", str(tmp_path / "copy"), "--store", str(tmp_path / "none"))
    assert done.status == 1


def test_the_file_of_an_export_holds_what_the_service_said(service: Secured, tmp_path: Path) -> None:
    file = tmp_path / "x.acceptd"
    assert service.run("ana", "export", "smol", "-o", str(file)).status == 0
    export = inspect_pb2.PairExport.FromString(file.read_bytes().removeprefix(MAGIC))
    shown = service.json("ana", "show", "smol")
    assert list(export.coefficients.line.intercepts) == shown["coefficients"]["intercepts"]
    assert json.loads(export.header)["counters"]["blocks"] == shown["blocks"]
