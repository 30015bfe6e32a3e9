"""The RPC feed between a daemon and a fake node: the command line, interruptions, wrong answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from bitcoin_feeds import BITCOIN, cli, exported, failed, fed, following, wait_for_tip
from bitcoin_rpc_chain import FakeNode, txid_of
from bitcoin_rpc_server import LOGIN, RpcServer, serving
from daemons import Daemon, running
from test_bitcoin_block import made_input, made_output, made_tx


@pytest.fixture
def fake() -> FakeNode:
    return FakeNode(40)


@pytest.fixture
def server(fake: FakeNode) -> Iterator[RpcServer]:
    with serving(fake) as server:
        yield server


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path, chain=BITCOIN) as daemon:
        yield daemon


def rpc(url: str) -> tuple[str, ...]:
    return "bitcoin-rpc", url, "--network", "regtest"


def assert_same(daemon: Daemon, fake: FakeNode) -> None:
    assert exported(daemon) == fake.coins()
    daemon.assert_sound()


def test_a_feed_up_to_a_height_continues_after_a_reorganisation(
    daemon: Daemon, server: RpcServer, fake: FakeNode
) -> None:
    assert "41 applied, height 40" in fed(daemon, *rpc(server.url), "--to", 40)
    assert_same(daemon, fake)
    fake.reorganise(6, 9)
    text = fed(daemon, *rpc(server.url), "--to", 43)
    assert "1 rolled_back" in text and "height 43" in text
    assert_same(daemon, fake)
    assert "nothing to send" in fed(daemon, *rpc(server.url), "--to", 43)


def test_the_daemon_ends_with_the_nodes_set_after_interruptions(
    daemon: Daemon, server: RpcServer, fake: FakeNode
) -> None:
    random = Random(0)

    def kill_daemon() -> None:
        daemon.kill()
        sleep(random.random() / 20)
        daemon.start()

    def restart_node() -> None:
        server.stop()
        sleep(random.random() / 20)
        server.start()

    with following(daemon, server.url, "--mempool", "--persisted-depth", 6) as feeding:
        events: list[Callable[[], Any]] = [
            *(kill_daemon, restart_node, feeding.restart, server.hang_up),
            lambda: fake.reorganise(random.randrange(1, 12), random.randrange(12, 15)),
            lambda: fake.mine(random.randrange(1, 60)),
        ]
        for _ in range(2):
            for event in random.sample(events, len(events)):
                event()
                sleep(random.random() / 10)
            wait_for_tip(daemon, lambda: fake.chain[-1], feeding)
            assert_same(daemon, fake)
        text = feeding.log()
    for line in text.splitlines():
        assert "trying again in" in line or "messages in" in line or "--mempool is switched off" in line, text


def test_replacements_reach_the_daemon(daemon: Daemon, server: RpcServer, fake: FakeNode) -> None:

    def spending(txid: str, value: int) -> bytes:
        return made_tx([made_input(bytes.fromhex(txid), 0)], [made_output(value)])

    coin = fake.changes[fake.chain[5]][1][1].partition(",")[0]  # of no coinbase
    old, new = spending(coin, 1), spending(coin, 2)
    child = spending(txid_of(old), 3)
    fake.pool = {txid_of(raw): raw for raw in (old, child)}

    def next_facts(count: int) -> list[tuple[str, str, Any]]:
        facts = [listener.receive() for _ in range(count)]
        return [(fact["txid"], fact["status"], fact["cause"].get("reason")) for fact in facts if fact is not None]

    with daemon.client() as listener, following(daemon, server.url, "--mempool"):
        listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
        assert next_facts(2) == [(txid_of(raw), "pending", None) for raw in (old, child)]
        fake.pool = {txid_of(new): new}
        assert next_facts(3) == [
            (txid_of(child), "withdrawn", "evicted"),
            (txid_of(old), "withdrawn", "replaced"),
            (txid_of(new), "pending", None),
        ]
        fake.pool = {}
        assert next_facts(1) == [(txid_of(new), "withdrawn", "evicted")]
    daemon.assert_sound()


def test_logins(daemon: Daemon, server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    user, _, password = LOGIN.partition(":")
    secret, cookie = tmp_path / "secret", tmp_path / ".cookie"
    secret.write_text(f"{password}\nanother line\n")
    cookie.write_text(LOGIN)
    ways: list[list[str | Path]] = [[], ["--user", user, "--password-file", secret], ["--cookie", cookie]]
    for height, way in enumerate(ways, 20):
        url = server.name if way else server.url
        assert f"height {height}" in fed(daemon, *rpc(url), *way, "--to", height)
    secret.write_text("wrong")
    text = failed(daemon, *rpc(server.name), "--user", user, "--password-file", secret)
    assert text == (
        f"Error: the node at {server.name} does not accept user and password (HTTP 401): "
        "see --cookie, or --user with --password-file"
    )
    assert failed(daemon, *rpc(server.name), "--user", user, "--password-file", tmp_path / "none").endswith(
        f"{tmp_path / 'none'}: No such file or directory"
    )
    assert "cannot be read (No such file" in failed(
        daemon, *rpc(server.name), "--cookie", tmp_path / "none", "--wait", 0.1
    )


@pytest.mark.parametrize(
    ("url", "more", "match"),
    [
        ("node:8332", [], "Invalid value for URL: it must begin with http://"),
        ("http://u:s3cret/@node", [], "Invalid value for URL: it cannot be read"),
        ("http://u:s3cret@node", ["--cookie", "x"], "give only one of: user and password in the URL, --cookie"),
        ("http://node", ["--user", "u"], "--user and --password-file must be given together"),
        ("http://node", ["--password-file", "x"], "--user and --password-file must be given together"),
        ("http://node", ["--network", "moon"], "'moon' is not one of 'mainnet'"),
        ("http://node", ["--requests", "0"], "0 is not in the range"),
        ("http://node", ["--poll", "0"], "0 is not in the range"),
        ("http://node", ["--to", "-1"], "-1 is not in the range"),
    ],
)
def test_wrong_options_are_refused(url: str, more: list[str], match: str) -> None:
    done = cli("feed", "bitcoin-rpc", url, *more)
    assert done.exit_code == 2 and match in done.stderr and "s3cret" not in done.output


def test_the_default_port_is_that_of_the_network() -> None:
    for network, port in {"mainnet": 8332, "testnet3": 18332, "testnet4": 48332, "signet": 38332}.items():
        url = "http://x:y@no.invalid"
        done = cli("feed", "bitcoin-rpc", url, "--network", network, "--dry-run", "--wait", 0.01)
        assert done.exit_code == 1 and f"no node answers at http://no.invalid:{port} (" in done.stderr


def test_dry_run_and_output_need_no_daemon(server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    common = ["feed", *rpc(server.url), "--to", "40"]
    done = cli(*common, "--dry-run")
    assert done.exit_code == 0 and "41 decoded, 80 transactions" in done.stderr and "height 40" in done.stderr
    done = cli(*common, "--output", tmp_path / "events")
    assert done.exit_code == 0 and "41 written" in done.stderr
    assert len((tmp_path / "events").read_bytes().splitlines()) == 41
