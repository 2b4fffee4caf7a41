"""Whether PEM can be used for TLS. Asked of bytes that were read: what is checked is then what is used, also where the
files are replaced meanwhile, or are pipes.

gRPC says of a wrong key or an empty authority no more than that a handshake failed. Checked is what OpenSSL sees; which
algorithms and key sizes are good enough is for the handshake to decide.
"""

from __future__ import annotations

import math
import os
import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name.
_NO_CHECK_TIME: Final = 0x200000


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


def not_after(cert: bytes, key: bytes) -> float:
    """Unix seconds until which the chain's first certificate is good; NaN where a client could not use it at all.

    As a client sees it: in a handshake in memory, with one that trusts this certificate alone, at whatever time. Both
    are what `check_chain` lets pass.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        with _path_of(cert) as chain, _path_of(key) as own:
            server.load_cert_chain(chain, own, password="")
        client.load_verify_locations(cadata=cert.decode("ascii", "ignore"))
        theirs = server.wrap_bio(to_server, to_client, server_side=True)
        ours = client.wrap_bio(to_client, to_server)
        for side in (ours, theirs, ours):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = ours.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
    except (ssl.SSLError, ValueError, KeyError):
        return math.nan


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
