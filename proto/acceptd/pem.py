"""Whether PEM can be used for TLS. Asked of bytes that were read: what is checked is then what is used, also where the
files are replaced meanwhile, or are pipes.

gRPC says of a wrong key or an empty authority no more than that a handshake failed. Checked is what OpenSSL sees; which
algorithms and key sizes are good enough is for the handshake to decide.
"""

from __future__ import annotations

import math
import os
import ssl
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name.
_NO_CHECK_TIME: Final = 0x200000
_ANY_SIZE: Final = "DEFAULT:@SECLEVEL=0"
_TURNS: Final = 32
#: Files there are in memory alone.
_MEMORY: Final = "/dev/shm"  # noqa: S108 (each file's name is drawn, and it is readable by its owner alone)


def load_chain(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Has `context` show it. Raises ValueError, with the reason, unless it is a chain and the first one's key.

    The key has no passphrase. Raises OSError if there is no descriptor or memory left to ask.
    """
    try:
        with _path_of(cert) as chain, _path_of(key) as own:
            context.load_cert_chain(chain, own, password="")
    except ssl.SSLError as error:
        raise ValueError(error.reason or str(error)) from None


def check_chain(cert: bytes, key: bytes) -> None:
    """Raises as `load_chain` does, of whatever size the key is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(_ANY_SIZE)
    load_chain(context, cert, key)


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

    As a client sees it: in a handshake in memory, with one that trusts this certificate alone, at whatever time.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.set_ciphers(_ANY_SIZE)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        load_chain(server, cert, key)
        client.load_verify_locations(cadata=cert.decode("ascii", "ignore"))
        theirs = server.wrap_bio(to_server, to_client, server_side=True)
        ours = client.wrap_bio(to_client, to_server)
        # A chain of many certificates takes more than one turn.
        for side in (ours, theirs) * _TURNS:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = ours.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
    except (OSError, ValueError, KeyError):  # of which SSLError is one
        return math.nan


@contextmanager
def _path_of(data: bytes) -> Iterator[str]:
    """Of a file that holds `data`, in memory where there is such a place; gone afterwards. Raises OSError."""
    if not hasattr(os, "memfd_create"):  # a Python that was built for an older glibc
        with tempfile.NamedTemporaryFile(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("acceptd")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
