"""Feeds that publish to a stream on real NATS servers, and daemons that follow it: one chain, whatever is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from bitcoin_feeds import BITCOIN, cli
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import LOGIN, RpcServer
from daemons import PATIENCE_S, ROOT, environment, running
from jetstream import PROGRAM, Server, empty, headers, moves, purge, servers
from nats.js.errors import NotFoundError
from patience import until
from streams import REGTEST, assert_follow, feeder, replicas, root
from test_bitcoin_block import made_input, made_output, made_tx

pytest_plugins = ["stream_fixtures"]


def test_replicas_follow_through_reorganisations_and_kills(
    tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode
) -> None:
    with feeder(tmp_path / "f", rpc, nats.url) as feeding, replicas(tmp_path, nats.url) as (one, two):
        assert_follow([one, two], node)
        node.reorganise(4, 6)
        assert_follow([one, two], node)
        one.kill()
        node.mine(3)
        node.reorganise(5, 7)
        feeding.kill()
        feeding.start()
        one.start()
        assert_follow([one, two], node)
        nats.kill()
        node.mine(2)
        nats.start()
        assert_follow([one, two], node)
        found = moves(headers(nats.url, REGTEST))
        heights = [height for _, height in found]
        assert [kind for kind, _ in found].count("Rollback") == 2
        for (_, before), (kind, height) in pairwise(found):
            assert height == before + 1 if kind == "BlockApplied" else height < before
        assert heights[-1] == node.height
        for daemon in (one, two):
            assert daemon.term() == 0
            daemon.assert_sound()


def test_replicas_reach_the_same_root(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    mmr = {"store": "mmr"}
    with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, 1, utxo=mmr) as made:
        assert_follow(made, node)
        (tmp_path / "late").mkdir()
        with replicas(tmp_path / "late", nats.url, 1, utxo=mmr) as late:
            node.reorganise(3, 5)
            assert_follow([*made, *late], node)
            assert len({root(daemon) for daemon in (*made, *late)}) == 1


def test_a_second_feeder_takes_over(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f1", rpc, nats.url) as first, replicas(tmp_path, nats.url, 1) as made:
        assert_follow(made, node)
        with feeder(tmp_path / "f2", rpc, nats.url) as second:
            until(lambda: "standing by" in second.file.read_text())
            node.mine(2)
            assert_follow(made, node)
            first.kill()
            node.mine(2)
            assert_follow(made, node)
            assert second.process.poll() is None
    assert moves(headers(nats.url, REGTEST)) == [("BlockApplied", height) for height in range(node.height + 1)]


def test_an_idle_replica_notices_that_its_stream_is_another(
    tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode
) -> None:
    with feeder(tmp_path / "f", rpc, nats.url) as feed, replicas(tmp_path, nats.url, 1) as (daemon,):
        assert_follow([daemon], node)
        feed.kill()
        empty(nats.url, REGTEST)
        until(lambda: f"stream {REGTEST} has lost messages" in daemon.log_text(), within_s=60)


def test_long_events_are_published_in_parts(tmp_path: Path, rpc: RpcServer, node: FakeNode) -> None:
    with servers(tmp_path, max_payload=8192) as (nats,):
        with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, 1) as made:
            assert_follow(made, node)
            node.mine(1, made_tx([made_input()], [made_output(0, b"\x6a" + bytes(9000))]))
            node.mine(2)
            assert_follow(made, node)
        assert [each["Utxod-Part"] for each in headers(nats.url, REGTEST) if "Utxod-Part" in each] == [
            "1/3",
            "2/3",
            "3/3",
        ]


def test_a_replica_starts_from_a_backup(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, 1) as made:
        assert_follow(made, node)
        assert made[0].run("backup", str(tmp_path / "copy")).returncode == 0
        node.mine(5)
        assert_follow(made, node)
        purge(nats.url, REGTEST, 20)
        (tmp_path / "new").mkdir()
        with running(tmp_path / "new", chain=BITCOIN) as empty:  # the beginning of the stream has been deleted
            done = cli("feed", "--config", empty.config, "stream", nats.url, "--to", "35")
            assert done.exit_code == 1 and "refused the message" not in done.output, done.output
            assert "start from a backup of a replica" in done.output
        (tmp_path / "restored").mkdir()
        restored = cli("restore", tmp_path / "copy", tmp_path / "restored" / "data")
        assert restored.exit_code == 0, restored.output
        tables: dict[str, Any] = {"chain": BITCOIN, "cluster": {"stream": nats.url}}
        with running(tmp_path / "restored", data_dir=str(tmp_path / "restored" / "data"), **tables) as third:
            assert_follow([*made, third], node)


def test_the_documented_commands_run(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    (tmp_path / ".bitcoin").mkdir()
    (tmp_path / ".bitcoin" / ".cookie").write_text(LOGIN)
    places = {
        "http://127.0.0.1:8332": rpc.name,
        "nats://10.0.0.1:4222": nats.url,
        "--network mainnet": "--network regtest",
        "--stream-replicas 3": "--stream-replicas 1",  # there is one server
    }
    commands = re.findall(r"^utxod feed .*$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    with running(tmp_path, chain=BITCOIN) as daemon, ExitStack() as feeds:
        path = f"{ROOT / '.venv' / 'bin'}:/usr/bin:/bin"
        environ = environment(HOME=str(tmp_path), PATH=path, UTXOD_CONFIG=str(daemon.config))
        for command in commands:
            for documented, ours in places.items():
                command = command.replace(documented, ours)
            feed = feeds.enter_context(subprocess.Popen(["bash", "-c", f"exec {command}"], env=environ))
            feeds.callback(feed.kill)
            if command is not commands[-1] and "--stream " in command:
                until(lambda: (tmp_path / "nats0" / "data").is_dir() and stored(nats) == node.height + 1)
        assert_follow([daemon], node)


def test_the_documented_configuration_of_a_server_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```text\n(server_name: .*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
    (tmp_path / "nats.conf").write_text(block)
    assert PROGRAM is not None
    done = subprocess.run([PROGRAM, "-t", "-c", tmp_path / "nats.conf"], capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def stored(nats: Server) -> int:
    """Return the number of messages of the stream, 0 before it is created."""
    try:
        return len(headers(nats.url, REGTEST))
    except NotFoundError:
        return 0


def test_a_missing_package_is_named() -> None:
    script = "import sys; sys.modules['nats'] = None; from daemon.cli import entry; entry()"
    for words in (["stream", "nats://x"], ["file", "-", "--chain", "bitcoin/regtest", "--stream", "nats://x"]):
        command = [sys.executable, "-c", script, "feed", *words]
        done = subprocess.run(command, input=b"", capture_output=True, env=environment(), timeout=PATIENCE_S)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr
        assert b"pip install 'utxod[stream]'" in done.stderr


def test_what_cannot_be_followed_is_named(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with running(tmp_path, chain=BITCOIN) as daemon:

        def failure(*words: str) -> str:
            done = cli("feed", "--config", daemon.config, *words)
            assert done.exit_code == 1, done.output
            return done.stderr.splitlines()[-1]

        assert f"there is no stream {REGTEST}: start a feed with --stream first" in failure("stream", nats.url)
        assert "no NATS server answers at nats://127.0.0.1:1:" in failure("stream", "nats://127.0.0.1:1")
        common = ("bitcoin-rpc", rpc.url, "--network", "regtest")
        assert cli("feed", *common, "--stream", nats.url, "--to", "30").exit_code == 0
        done = cli("feed", "--config", daemon.config, *common, "--to", "30")
        assert done.exit_code == 0
        node.reorganise(9, 10)
        assert cli("feed", "--config", daemon.config, *common, "--to", "31").exit_code == 0
        assert f"stream {REGTEST} does not have the daemon's tip (height 31, " in failure("stream", nats.url)
    for words, why in (
        (("--output", "x"), "--stream, --output and --dry-run exclude each other"),
        (("--mempool",), "--mempool and --stream exclude each other"),
    ):
        done = cli("feed", *common, "--stream", nats.url, *words)
        assert done.exit_code == 2 and why in done.output
