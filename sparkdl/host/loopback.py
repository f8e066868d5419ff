"""Runs anywhere (pure). Names and addresses under which only this host is reached."""

import functools
import ipaddress
from urllib.parse import urlsplit

# The address of this host that no other host reaches.
LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return True for a name or an address under which only this host is reached.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "[::1]", "10.0.0.7", "")]
        [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# A server asks for each request, mostly of the same names.
@functools.lru_cache(maxsize=64)
def leads_here(url: str) -> bool:
    """Return True if the host of an address is this host, or a tunnel to this host.

    Example:
        >>> [leads_here(url) for url in ("//127.0.0.2:80", "http://localhost", "//[::1]", "null")]
        [True, True, True, False]
    """
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
