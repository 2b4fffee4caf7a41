"""Whether PEM can be used for TLS. Asked of bytes that were read: what is checked is then what is used, also where the
files are replaced meanwhile, or are pipes.

gRPC says of a wrong key or an empty authority no more than that a handshake failed. Checked is what OpenSSL sees; which
algorithms and key sizes are good enough is for the handshake to decide.
"""

from __future__ import annotations

import os
import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_chain(cert: bytes, key: bytes) -> None:
    """Raises ValueError, with the reason, unless it is a chain and the first one's key without a passphrase."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with _path_of(cert) as chain, _path_of(key) as own:
        try:
            context.load_cert_chain(chain, own, password="")
        except OSError as error:  # of which SSLError is one
            raise ValueError(str(getattr(error, "reason", None) or error)) from None


def check_authorities(ca: bytes) -> None:
    """Raises ValueError if there is no certificate in it. Others may be damaged, as for gRPC."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # What stands between certificates may be in any script; what is in them is ASCII. OpenSSL stops at the first one
    # that is damaged, and keeps those before.
    with suppress(ssl.SSLError, ValueError):
        context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
    if not context.cert_store_stats()["x509"]:
        raise ValueError("there is no certificate in it")


@contextmanager
def _path_of(data: bytes) -> Iterator[str]:
    """Of a file that holds `data`, in memory alone."""
    descriptor = os.memfd_create("acceptd")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
