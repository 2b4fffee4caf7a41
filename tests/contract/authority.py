"""Certificates for tests: an authority, what it signs, and files of it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme

PAST = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Files:
    """PEM files of one certificate, its key, and the authority that signed it."""

    cert: Path
    key: Path
    ca: Path

    def client(self, authority: Files | None = None) -> grpc.ChannelCredentials:
        """For a client that trusts `authority`, with this certificate."""
        trusted = (authority or self).ca.read_bytes()
        return grpc.ssl_channel_credentials(trusted, self.key.read_bytes(), self.cert.read_bytes())

    def trusting(self) -> grpc.ChannelCredentials:
        """For a client without a certificate."""
        return grpc.ssl_channel_credentials(self.ca.read_bytes())


def issue(directory: Path, ca: trustme.CA, name: str, *, expired: bool = False) -> Files:
    """A certificate for 127.0.0.1 and localhost, whose common name is `name`."""
    expiry = PAST if expired else None
    made = ca.issue_cert("127.0.0.1", "localhost", common_name=name, not_after=expiry)
    files = Files(directory / f"{name}.crt", directory / f"{name}.key", directory / f"{name}.ca")
    write(files, made, ca)
    return files


def write(files: Files, made: trustme.LeafCert, ca: trustme.CA) -> None:
    """Replaces the files, key first, as a careful operator does."""
    made.private_key_pem.write_to_path(files.key)
    files.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    ca.cert_pem.write_to_path(files.ca)


def issue_other(directory: Path) -> Files:
    """By an authority that nobody trusts."""
    return issue(directory, trustme.CA(), "stranger")
