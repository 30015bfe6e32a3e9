"""Allowed host names: a web page of another site must not be able to read a daemon that listens on loopback only.

With DNS rebinding a site lets its own name resolve to this machine's address; its pages then read the daemon as if it
were that site. Their requests carry the site's name in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+?)\.?)(?::[0-9]{0,5})?")


class Hosts:
    """The names that one listening socket answers to.

    `listen` is the host of `http.listen`, None for a Unix socket; `local` is whether only this machine can connect.
    """

    def __init__(self, listen: str | None, allowed: Iterable[str], *, local: bool) -> None:
        self._names = {name.lower() for name in (*allowed, *([listen] if listen else []))}
        self._any_name = "*" in self._names or not (local or [*allowed])
        self._any_address = "*" in self._names or not local

    def accept(self, authority: str) -> bool:
        """Return whether requests for this host are answered; the port does not matter.

        Raises:
            ValueError: this is not a host and port.
        """
        parts = _AUTHORITY.fullmatch(authority)
        if parts is None:
            raise ValueError(authority)
        host = (parts[1] or parts[2]).lower()
        if host in self._names or host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return self._any_name
        return self._any_address or is_loopback(host) or str(address) in self._names


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


class Listener(NamedTuple):
    """Properties of the connections to one listening socket: accepted hosts, and the facade whose paths it has."""

    hosts: Hosts
    prefix: str = ""  # in front of every path


def name_of(address: object) -> object:
    """Return what distinguishes listening sockets: a port, or the path of a Unix socket."""
    return address[1] if isinstance(address, tuple) else address
