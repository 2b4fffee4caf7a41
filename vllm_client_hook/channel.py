"""The gRPC channel to the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from acceptd.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from acceptd.identity import Identity


def open_channel(address: str, identity: Identity, keepalive: float) -> grpc.Channel:
    """A channel with connections of its own. keepalive: seconds of silence after which the peer is asked.

    gRPC's shared connections carry a back-off of their own, which would stretch ours. Raises ConfigError for files of
    the identity that cannot be used.
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
    certificates = identity.certificates()
    if certificates is None:
        return grpc.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.cert)
    return grpc.secure_channel(address, credentials, options)
