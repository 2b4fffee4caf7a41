"""The files by which a client is known: each kind of wrong one is a line that names it and quotes nothing of it."""

from __future__ import annotations

import datetime
import errno
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from acceptd.errors import ConfigError
from acceptd.identity import FILES, Identity, variable
from acceptd.names import path_shown
from acceptd.pem import check_chain, not_after
from estimator_service.access.tokens import new_token
from estimator_service.cli.target import flag

SECRET = "s3cret"
TOKEN = new_token()
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def pem(tmp_path: Path) -> dict[str, str]:
    """A client's certificate and key, another key, one with a passphrase, the authority, and what is none of these."""
    ca = trustme.CA()
    mine, other = ca.issue_cert("localhost"), ca.issue_cert("localhost")
    key = serialization.load_pem_private_key(mine.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(SECRET.encode()),
    )
    held = {
        "ca": ca.cert_pem.bytes(),
        # As bundles of authorities have them.
        "commented": "# Autorité de Léon\n".encode() + ca.cert_pem.bytes(),
        "cert": b"".join(blob.bytes() for blob in mine.cert_chain_pems),
        "key": mine.private_key_pem.bytes(),
        "other": other.private_key_pem.bytes(),
        "locked": locked,
        "garbage": SECRET.encode(),
        "empty": b"",
    }
    for name, data in held.items():
        (tmp_path / name).write_bytes(data)
    return {name: str(tmp_path / name) for name in [*held, "nowhere"]}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \n",
        SECRET.encode() + b"\nanother\n",
        SECRET.encode() + b" another",
        b"\xff\xfe\x00" + SECRET.encode(),
        SECRET.encode() + "é".encode(),
        SECRET.encode() + b"\x00",
        SECRET.encode() * 10_000,
    ],
)
def test_a_file_that_holds_no_token(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as raised:
        Identity(str(file)).metadata()
    assert str(raised.value) == (
        f"ACCEPTD_TOKEN_FILE names {str(file)!r}, which holds no token; accepted: a file with one token and no more"
    )
    assert raised.value.__cause__ is None


def test_a_second_word_after_many_blanks(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET + " " * 10_000 + "another")
    with pytest.raises(ConfigError, match="holds no token"):
        Identity(str(file)).metadata()


def test_a_token_goes_with_each_call(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {SECRET}\r\n")
    assert Identity(str(file)).metadata() == (("authorization", f"Bearer {SECRET}"),)
    assert Identity().metadata() == ()
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        Identity(str(file)).metadata()
    with pytest.raises(ConfigError, match=r"--token-file names .* which cannot be read"):
        Identity(str(tmp_path), name=flag).metadata()


@pytest.mark.parametrize(
    ("ca", "cert", "key", "named"),
    [
        ("garbage", "", "", "ca_file"),
        ("empty", "", "", "ca_file"),
        ("key", "", "", "ca_file"),
        ("nowhere", "", "", "ca_file"),
        ("ca", "garbage", "key", "cert_file"),
        ("ca", "empty", "key", "cert_file"),
        ("ca", "key", "key", "cert_file"),
        ("ca", "nowhere", "key", "cert_file"),
        ("ca", "cert", "garbage", "key_file"),
        ("ca", "cert", "other", "key_file"),
        ("ca", "cert", "locked", "key_file"),
        ("ca", "cert", "nowhere", "key_file"),
    ],
)
@pytest.mark.parametrize("command", [False, True])
def test_certificates_that_cannot_be_used(
    pem: dict[str, str], ca: str, cert: str, key: str, named: str, *, command: bool
) -> None:
    files = [pem[name] if name else "" for name in (ca, cert, key)]
    identity = Identity("", *files, name=flag) if command else Identity("", *files)
    with pytest.raises(ConfigError) as raised:
        identity.certificates()
    line = str(raised.value)
    assert f"{identity.name(named)} names {getattr(identity, named)!r}" in line
    assert "\n" not in line
    assert SECRET not in line


@pytest.mark.parametrize("ca", ["ca", "commented"])
def test_certificates_as_grpc_takes_them(pem: dict[str, str], ca: str) -> None:
    assert Identity().certificates() is None
    trusting = Identity(ca_file=pem[ca]).certificates()
    assert trusting is not None
    assert (trusting.ca, trusting.key, trusting.cert) == (Path(pem[ca]).read_bytes(), None, None)
    known = Identity("", pem[ca], pem["cert"], pem["key"]).certificates()
    assert known is not None
    assert (known.key, known.cert) == (Path(pem["key"]).read_bytes(), Path(pem["cert"]).read_bytes())


def test_what_is_checked_is_what_is_used(pem: dict[str, str]) -> None:
    """Each file is read once: pipes can be read no more often, and files may be replaced between two reads."""
    held = [Path(pem[name]).read_bytes() for name in ("ca", "cert", "key")]
    pipes = []
    for data in held:
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        pipes.append(reader)
    found = Identity("", *(f"/dev/fd/{reader}" for reader in pipes)).certificates()
    for reader in pipes:
        os.close(reader)
    assert found is not None
    assert [found.ca, found.cert, found.key] == held


@pytest.fixture
def short(tmp_path: Path) -> dict[str, str]:
    """A certificate with a key of 1024 bits."""
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "short")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + datetime.timedelta(1))
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "short").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(encoding))
    (tmp_path / "own").write_bytes(private)
    return {"cert": str(tmp_path / "short"), "key": str(tmp_path / "own")}


def test_what_the_handshake_decides_is_left_to_it(pem: dict[str, str], short: dict[str, str], tmp_path: Path) -> None:
    """A short key, and a bundle whose last certificate is cut off."""
    ca = Path(pem["ca"]).read_bytes()
    (tmp_path / "cut").write_bytes(ca + ca[: len(ca) // 2])
    assert Identity("", str(tmp_path / "cut"), short["cert"], short["key"]).certificates() is not None
    read = [Path(short[name]).read_bytes() for name in ("cert", "key")]
    assert not_after(*read) == int((NOW + datetime.timedelta(1)).timestamp())


def test_a_private_key_is_in_no_repr(pem: dict[str, str]) -> None:
    found = Identity("", pem["ca"], pem["cert"], pem["key"]).certificates()
    assert found is not None
    assert found.key is not None
    assert b"PRIVATE KEY" in found.key
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize("present", [True, False], ids=["memfd", "an older glibc"])
def test_with_a_python_that_knows_no_files_in_memory(
    pem: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, present: bool
) -> None:
    if not present:
        monkeypatch.delattr(os, "memfd_create")
    cert, key, other = (Path(pem[name]).read_bytes() for name in ("cert", "key", "other"))
    check_chain(cert, key)
    with pytest.raises(ValueError, match=r"(?i)mismatch"):
        check_chain(cert, other)
    assert not_after(cert, key) > NOW.timestamp()


def test_no_descriptors_left_is_a_reason_like_others(pem: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", full)
    with pytest.raises(ConfigError, match="Too many open files"):
        Identity("", pem["ca"], pem["cert"], pem["key"]).certificates()


def test_what_no_client_can_use_has_no_date() -> None:
    """A certificate for clients alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + datetime.timedelta(1))
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    made = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    assert math.isnan(not_after(made.public_bytes(encoding), private))


def test_a_list_of_revoked_certificates_is_no_authority(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    revoked = x509.CertificateRevocationListBuilder(name, NOW, NOW + datetime.timedelta(1)).sign(key, hashes.SHA256())
    file = tmp_path / "crl"
    file.write_bytes(revoked.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(ConfigError, match="there is no certificate in it; accepted: PEM certificates"):
        Identity(ca_file=str(file)).certificates()


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "-----BEGIN PRIVATE KEY-----\nMIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYw\n-----END PRIVATE KEY-----\n",
        "MIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYwggSiAgEAAoIBAQC7VJTUt9Us8cKj" * 20,
        "MIIEvAIBADANBgkqhkiG9/0BAQEFAASCBKYwggSi/gEAAoIBAQC7VJT+t9Us8cKj==",
        f"{TOKEN} ",
        f"Bearer {TOKEN}",
        f"file://{TOKEN}",
        f"./{TOKEN}.txt",
    ],
)
@pytest.mark.parametrize("field", FILES)
def test_a_secret_in_place_of_its_files_name_is_not_shown(secret: str, field: str) -> None:
    present = {"token_file": __file__, "ca_file": __file__, "cert_file": __file__, "key_file": __file__, field: secret}
    with pytest.raises(ConfigError, match=rf"{variable(field)} names a path that is not shown"):
        Identity(**present).check_files()  # type: ignore[arg-type]
    read = Identity.metadata if field == "token_file" else Identity.certificates
    with pytest.raises(ConfigError) as raised:
        read(Identity(**present))  # type: ignore[arg-type]
    assert secret[:12] not in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "exposed"),
    [
        ("ipv4:127.0.0.1:5", False),
        ("ipv6:[::1]:5", False),
        ("dns:localhost:5", False),
        ("dns:///localhost:5", False),
        ("LOCALHOST:5", False),
        ("ipv4:10.0.0.1:5", True),
        ("dns:///acceptd.internal:5", True),
    ],
)
def test_addresses_as_grpc_writes_them(address: str, *, exposed: bool) -> None:
    assert Identity("token").exposed(address) == exposed


def test_long_names_of_files_are_shown() -> None:
    for path in ("certs/acceptd/production/frankfurt/authority", "/srv/Keys/2026/rack1-client-certificate.pem"):
        assert path_shown(path) == repr(path)


def test_a_path_that_cannot_be_looked_at_is_no_file() -> None:
    with pytest.raises(ConfigError, match=r"ACCEPTD_TOKEN_FILE names .* which is not a file"):
        Identity("x" * 300).check_files()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"cert_file": "x"}, "ACCEPTD_CERT_FILE and ACCEPTD_KEY_FILE belong together"),
        ({"ca_file": "x", "key_file": "x"}, "ACCEPTD_CERT_FILE and ACCEPTD_KEY_FILE belong together"),
        ({"cert_file": "x", "key_file": "x"}, "ACCEPTD_CERT_FILE without ACCEPTD_CA_FILE; accepted: both"),
    ],
)
def test_a_certificate_that_would_never_be_shown(fields: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Identity(**fields)  # type: ignore[arg-type]


def test_the_replaying_worker_refuses_it_as_the_hook_does(pem: dict[str, str]) -> None:
    command = [sys.executable, "-m", "vllm_client_hook.replay", "trace.parquet"]
    environment = {"ACCEPTD_CERT_FILE": pem["cert"], "ACCEPTD_KEY_FILE": pem["key"], "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ACCEPTD_CERT_FILE without ACCEPTD_CA_FILE")
    assert done.stderr.count("\n") == 1
