"""The gRPC channel to the service, and who it says it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from acceptd.addresses import is_loopback
from acceptd.limits import MAX_MESSAGE_BYTES


@dataclass(frozen=True)
class Identity:
    """How the channel is secured. Files are read at each connection attempt, so that they can be rotated.

    token_file: bearer token. ca_file: turns TLS on and names whom to trust. cert_file, key_file: client certificate.
    """

    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def metadata(self) -> list[tuple[str, str]]:
        """What each call carries. Raises OSError if the token's file cannot be read."""
        token = _read(self.token_file)
        return [("authorization", f"Bearer {token.decode().strip()}")] if token else []

    def exposed(self, address: str) -> bool:
        """Whether the token crosses a network in the clear on its way to `address` (`host:port` or `unix:path`)."""
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        return bool(self.token_file and not self.ca_file) and not (address.startswith("unix:") or is_loopback(host))


def open_channel(address: str, identity: Identity, keepalive: float) -> grpc.Channel:
    """A channel with connections of its own. keepalive: seconds of silence after which the peer is asked.

    gRPC's shared connections carry a back-off of their own, which would stretch ours.
    """
    milliseconds = int(keepalive * 1000)
    options = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.enable_http_proxy", 0),
    ]
    if not identity.ca_file:
        return grpc.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(
        _read(identity.ca_file), _read(identity.key_file), _read(identity.cert_file)
    )
    return grpc.secure_channel(address, credentials, options)


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
