"""A real daemon and a real feed beside a node that is not: the command line, interruptions of all three, and lies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from bitcoin_feeds import BITCOIN, cli, exported, feed, following, refused, tip_of, wait_for_tip, wait_until
from bitcoin_rpc_chain import FakeNode, txid_of
from bitcoin_rpc_server import LOGIN, RpcServer, serving
from daemons import Daemon, running
from real_data import lines, names, need, rows
from test_bitcoin_block import hash_of, made_block, made_coinbase, made_input, made_output, made_tx


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


def assert_same(daemon: Daemon, fake: FakeNode) -> None:
    assert exported(daemon) == fake.coins()
    daemon.assert_sound()


def test_up_to_a_height_and_on(daemon: Daemon, server: RpcServer, fake: FakeNode) -> None:
    assert "41 applied, height 40" in feed(daemon, server.url, "--to", 40)
    assert_same(daemon, fake)
    fake.reorganise(6, 9)
    said = feed(daemon, server.url, "--to", 43)
    assert "1 rolled_back" in said and "height 43" in said
    assert_same(daemon, fake)
    assert "nothing to send" in feed(daemon, server.url, "--to", 43)


@pytest.mark.parametrize("run", names("bitcoin/mainnet-0-*.hex.xz"))
def test_a_real_chain(run: str, tmp_path: Path) -> None:
    """The first blocks of the main network, fed through RPC, leave what an independent decoder computed."""
    raws = [bytes.fromhex(line) for line in lines(need(run))]
    name = run.removesuffix(".hex.xz").replace("/", "-")
    expected = list(rows(need(f"expected/{name}.blocks.jsonl.xz")))[-1]
    fake = FakeNode()
    fake.chain = [hash_of(raw).hex() for raw in raws]
    fake.blocks = dict(zip(fake.chain, raws, strict=True))
    with serving(fake) as server, running(tmp_path, chain={"family": "bitcoin"}) as daemon:
        feed(daemon, server.url, "--network", "mainnet", "--to", len(raws) - 1)
        coins = [line.rpartition(",")[0].replace(",", ":") for line in exported(daemon)]
    total = sum(int.from_bytes(hashlib.sha256(f"{coin}\n".encode()).digest()) for coin in coins)
    assert f"{total % 2**256:064x}" == expected["core"]["acc"]
    assert len(coins) == expected["core"]["utxo_count"]


@pytest.mark.parametrize("seed", range(2))
def test_interruptions_of_everyone(seed: int, daemon: Daemon, server: RpcServer, fake: FakeNode) -> None:
    """Daemon, feed and node are killed and the chain turns, in any order; then the daemon has what the node has."""
    random = Random(seed)

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
            kill_daemon,
            restart_node,
            feeding.restart,
            server.hang_up,
            lambda: fake.reorganise(random.randrange(1, 12), random.randrange(12, 15)),
            lambda: fake.mine(random.randrange(1, 60)),
        ]
        for _ in range(2):
            for event in random.sample(events, len(events)):
                event()
                sleep(random.random() / 10)
            wait_for_tip(daemon, lambda: fake.chain[-1], feeding)
            assert_same(daemon, fake)
        said = feeding.said()
    for line in said.splitlines():
        assert "trying again in" in line or "messages in" in line or "--mempool is switched off" in line, said


def test_what_the_node_replaces_is_replaced(daemon: Daemon, server: RpcServer, fake: FakeNode) -> None:
    """In the daemon too, with what builds on it; what the node has forgotten is free."""

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


def test_a_node_that_is_away_is_waited_for_one_line_each(daemon: Daemon, server: RpcServer, fake: FakeNode) -> None:
    with following(daemon, server.url) as feeding:
        wait_for_tip(daemon, lambda: fake.chain[-1], feeding)
        server.stop()
        fake.mine(3)
        wait_until(lambda: feeding.said().count("connection refused") >= 2, feeding.said)
        server.start()
        wait_for_tip(daemon, lambda: fake.chain[-1], feeding)
        away = [line for line in feeding.said().splitlines() if "trying again" in line]
    again = f"no node answers at {server.name} (connection refused); trying again in"
    assert away[-2:] == [f"{again} 0.2 s", f"{again} 0.5 s"] or away[-1].startswith(again)
    assert_same(daemon, fake)


def test_a_node_that_never_was_there(daemon: Daemon, server: RpcServer) -> None:
    server.stop()
    assert refused(daemon, server.url, "--wait", 0.1) == (
        f"Error: no node answers at {server.name} (connection refused)"
    )


def lie_hash(fake: FakeNode) -> str:
    fake.lies["getblock"] = lambda asked: fake.raw(3).hex()
    return "gives block"


def lie_parent(fake: FakeNode) -> str:
    raw = made_block([made_coinbase(b"x")], parent=b"\x77" * 32)
    fake.chain[-1] = hash_of(raw).hex()
    fake.blocks[fake.chain[-1]] = raw
    return "does not follow"


def lie_branch(fake: FakeNode) -> str:
    raw = made_block([made_coinbase(b"x")], parent=b"\x77" * 32)
    fake.chain[20:] = [hash_of(raw).hex()] * 30
    fake.blocks[fake.chain[20]] = raw
    return "does not follow"


def lie_bytes(fake: FakeNode) -> str:
    fake.lies["getblock"] = lambda asked: "00" * 300
    return "gives block 41"


def lie_network(fake: FakeNode) -> str:
    fake.chain[0] = fake.chain[1]
    return "is on an unknown network"


def test_a_lie_is_one_clear_line_and_leaves_the_store(tmp_path: Path) -> None:
    fake = FakeNode(40)
    with serving(fake) as server, running(tmp_path, chain=BITCOIN) as daemon:
        feed(daemon, server.url, "--to", 40)
        before, tip = exported(daemon), tip_of(daemon)
        fake.mine()
        honest = list(fake.chain)
        for lie in (lie_hash, lie_parent, lie_branch, lie_bytes, lie_network):
            match = lie(fake)
            said = refused(daemon, server.url)
            assert said.startswith(f"Error: the node at {server.name} ") and match in said
            assert tip_of(daemon) == tip
            fake.chain = list(honest)
            fake.lies.clear()
        assert exported(daemon) == before
        daemon.assert_sound()


def test_a_daemon_that_cannot_go_back_so_far(server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    windows = {"prune_depth": 5, "rollback_window": 10, "prune_batch_size": 1000}
    with running(tmp_path, chain=BITCOIN, utxo=windows) as daemon:
        feed(daemon, server.url, "--to", 40)
        before = exported(daemon)
        fake.reorganise(25, 26)
        said = refused(daemon, server.url)
        assert "the daemon is on another chain: none of its blocks from height " in said
        assert exported(daemon) == before


# --- the command line ----------------------------------------------------------------------------------------------


def test_every_way_to_log_in(daemon: Daemon, server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    user, _, password = LOGIN.partition(":")
    secret, cookie = tmp_path / "secret", tmp_path / ".cookie"
    secret.write_text(f"{password}\nanother line\n")
    cookie.write_text(LOGIN)
    ways: list[list[str | Path]] = [[], ["--user", user, "--password-file", secret], ["--cookie", cookie]]
    for height, way in enumerate(ways, 20):
        url = server.name if way else server.url
        assert f"height {height}" in feed(daemon, url, *way, "--to", height)
    secret.write_text("wrong")
    said = refused(daemon, server.name, "--user", user, "--password-file", secret)
    assert said == (
        f"Error: the node at {server.name} does not accept user and password (HTTP 401): "
        "see --cookie, or --user with --password-file"
    )
    assert refused(daemon, server.name, "--user", user, "--password-file", tmp_path / "none").endswith(
        f"{tmp_path / 'none'}: No such file or directory"
    )
    assert "can't be read (No such file" in refused(daemon, server.name, "--cookie", tmp_path / "none", "--wait", 0.1)


@pytest.mark.parametrize(
    ("url", "more", "match"),
    [
        ("node:8332", [], "Invalid value for URL: it has to begin with http://"),
        ("http://u:s3cret/@node", [], "Invalid value for URL: it can't be read"),
        ("http://u:s3cret@node", ["--cookie", "x"], "give one of: user and password in the URL, --cookie"),
        ("http://node", ["--user", "u"], "--user and --password-file go together"),
        ("http://node", ["--password-file", "x"], "--user and --password-file go together"),
        ("http://node", ["--network", "moon"], "'moon' is not one of 'mainnet'"),
        ("http://node", ["--requests", "0"], "0 is not in the range"),
        ("http://node", ["--poll", "0"], "0 is not in the range"),
        ("http://node", ["--to", "-1"], "-1 is not in the range"),
    ],
)
def test_wrong_use(url: str, more: list[str], match: str) -> None:
    done = cli("feed", "bitcoin-rpc", url, *more)
    assert done.exit_code == 2 and match in done.stderr and "s3cret" not in done.output


def test_the_port_is_that_of_the_network() -> None:
    for network, port in {"mainnet": 8332, "testnet3": 18332, "testnet4": 48332, "signet": 38332}.items():
        url = "http://x:y@no.invalid"
        done = cli("feed", "bitcoin-rpc", url, "--network", network, "--dry-run", "--wait", 0.01)
        assert done.exit_code == 1 and f"no node answers at http://no.invalid:{port} (" in done.stderr


def test_without_a_daemon(server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    """A file of events is as good as the node."""
    common = ["feed", "bitcoin-rpc", server.url, "--network", "regtest", "--to", "40"]
    done = cli(*common, "--dry-run")
    assert done.exit_code == 0 and "41 decoded, 80 transactions" in done.stderr and "height 40" in done.stderr
    done = cli(*common, "--output", tmp_path / "events")
    assert done.exit_code == 0 and "41 written" in done.stderr
    with running(tmp_path, chain=BITCOIN) as daemon:
        assert daemon.run("feed", "file", tmp_path / "events").returncode == 0
        assert_same(daemon, fake)


def test_a_daemon_of_another_chain(server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    """The node is not even asked."""
    with running(tmp_path, chain={"family": "bitcoin", "network": "signet"}) as daemon:
        assert refused(daemon, server.url) == (
            "Error: the daemon keeps bitcoin/signet, this is a feed of bitcoin/regtest: "
            "see --network here, chain.family and chain.network there"
        )
        assert exported(daemon) == [] and fake.calls == []
