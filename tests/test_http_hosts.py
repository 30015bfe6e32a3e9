"""Which hosts requests may name, so that pages of other sites cannot read a daemon through a name of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from questions import free_port, short_folder
from raw_http import exchange, get, serving

from daemon.http.hosts import Hosts

LOCAL = ["localhost", "LOCALHOST:8410", "utxod.localhost", "localhost.", "127.0.0.1", "127.5.6.7:1", "[::1]:8410"]
ADDRESSES = ["192.0.2.7:8410", "10.0.0.1", "[2001:db8::7]:8410", "[::ffff:10.0.0.1]"]
NAMES = ["other.example", "other.example:8410", "localhost.other.example", "127.0.0.1.other.example", "notlocalhost"]


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "localhost", None])
def test_a_local_listener_answers_to_local_names_only(listen: str | None) -> None:
    hosts = Hosts(listen, (), local=True)
    assert all(map(hosts.accept, [*LOCAL, "[::ffff:127.0.0.1]"]))
    assert not any(map(hosts.accept, [*ADDRESSES, *NAMES]))


def test_a_local_listener_answers_to_the_names_that_are_allowed() -> None:
    hosts = Hosts("127.0.0.1", ("Wallet.Example", "192.0.2.7", "2001:db8::7"), local=True)
    assert all(map(hosts.accept, [*LOCAL, "wallet.example", "WALLET.example.:443", "192.0.2.7", "[2001:DB8:0::7]:1"]))
    assert not any(map(hosts.accept, ["10.0.0.1", "[2001:db8::8]", "a.wallet.example", *NAMES]))
    assert all(map(Hosts(None, ("*",), local=True).accept, [*LOCAL, *ADDRESSES, *NAMES]))


def test_a_listener_that_others_reach_answers_to_every_address() -> None:
    """A page can only name the address from which it was loaded, so addresses are safe."""
    assert all(map(Hosts("0.0.0.0", (), local=False).accept, [*LOCAL, *ADDRESSES, *NAMES]))
    hosts = Hosts("utxod.lan", ("wallet.example",), local=False)
    assert all(map(hosts.accept, [*LOCAL, *ADDRESSES, "wallet.example", "utxod.lan:8410"]))
    assert not any(map(hosts.accept, NAMES))


@pytest.mark.parametrize(
    "host", ["", ":80", "a b", "a:b", "a:999999", "[::1", "::1", "user@localhost", "a/b", "ö", "[]"]
)
def test_what_is_no_host_is_malformed(host: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Hosts("127.0.0.1", ("*",), local=True).accept(host)


def test_a_page_of_another_site_reads_nothing() -> None:
    with short_folder() as folder:
        for where in (free_port(), folder / "http"):
            listen = f"unix:{where}" if isinstance(where, Path) else f"127.0.0.1:{where}"
            with serving(folder, listen=listen, allowed_hosts=["wallet.example"]):
                for path in ("/api/v1/status", "/metrics", "/health/live", "/", "/nothing"):
                    answer = exchange(where, get(path, "evil.example"))
                    assert (answer.status, answer.error()) == (421, "unknown_host")
                    assert b"evil.example" in answer.body and b"http.allowed_hosts" in answer.body
                    assert not [name for name in answer.headers if name.startswith("x-tip")]
                for host in ("wallet.example", "localhost", "127.0.0.1:8410", "[::1]"):
                    assert exchange(where, get("/metrics", host)).status == 200
