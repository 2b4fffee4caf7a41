"""Where an address leads. Free of imports, so that hook and service agree on it."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: a name or an IP address without brackets.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("10.0.0.1"), is_loopback("acceptd.internal")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
