"""A splitter and the daemons of shards as processes: together they have the set of the chain, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from bitcoin_feeds import BITCOIN, cli, exported, tip_of
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import RpcServer
from daemons import Daemon, running
from jetstream import Server, headers, moves
from patience import until
from questions import Web
from streams import REGTEST, Publishing, feeder, killed_at_last

pytest_plugins = ["stream_fixtures"]


class Splitter(Publishing):
    """`utxod split`."""

    def __init__(self, folder: Path, url: str, count: int, *more: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "split.toml"
        config.write_text('[chain]\nfamily = "bitcoin"\nnetwork = "regtest"\n')
        super().__init__(folder / "split.log", "split", "--config", str(config), url, "--shards", str(count), *more)


@contextmanager
def splitter(folder: Path, url: str, count: int, *more: str) -> Iterator[Splitter]:
    with killed_at_last(Splitter(folder, url, count, *more)) as made:
        yield made


@contextmanager
def shards(folder: Path, url: str, count: int, **tables: Any) -> Iterator[list[Daemon]]:
    with ExitStack() as daemons:
        made = list[Daemon]()
        for number in range(1, count + 1):
            place = folder / f"shard{number}of{count}"
            place.mkdir(exist_ok=True)
            cluster = {"stream": url, "shard": f"{number}/{count}"}
            http = {"workers": 1, "listen": f"unix:{place}/http"}
            made.append(daemons.enter_context(running(place, chain=BITCOIN, cluster=cluster, http=http, **tables)))
        yield made


def assert_joined(made: Sequence[Daemon], node: FakeNode) -> None:
    """Wait until all shards have the node's tip, and compare what they have together with the node's set."""
    for daemon in made:
        until(lambda daemon=daemon: tip_of(daemon) == node.chain[-1], within_s=60)  # type: ignore[misc]
    assert sorted(line for daemon in made for line in exported(daemon)) == sorted(node.coins())


def assert_each_once(url: str, count: int, last: int) -> None:
    """Compare the events in the stream of each shard with those of the chain's stream."""
    whole = headers(url, REGTEST)
    for number in range(1, count + 1):
        found = headers(url, f"{REGTEST}_{number}_OF_{count}")
        assert moves(found) == moves(whole)
        sources = [int(each["Utxod-Source"]) for each in found]
        assert all(before < after for before, after in pairwise(sources))
    assert moves(whole)[-1][1] == last


def test_shards_are_the_chain_whatever_is_killed(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with (
        feeder(tmp_path / "f", rpc, nats.url),
        splitter(tmp_path / "s", nats.url, 2) as dividing,
        shards(tmp_path, nats.url, 2) as made,
    ):
        assert_joined(made, node)
        node.reorganise(4, 6)
        assert_joined(made, node)
        dividing.kill()
        made[0].kill()
        node.mine(3)
        node.reorganise(5, 7)
        dividing.start()
        until(lambda: tip_of(made[1]) == node.chain[-1], within_s=60)  # the other shard goes on
        for _ in range(3):
            node.mine(2)
            dividing.kill()
            dividing.start()
        made[0].start()
        assert_joined(made, node)
        assert_each_once(nats.url, 2, node.height)
        with Web(made[1].folder / "http") as web:
            assert web.get("/api/v1/status")["chain"]["shard"] == "2/2"
            assert "utxod_shard_number 2.0\n" in web.ask("/metrics").text
        status = cli("status", "--config", made[1].config)
        assert "bitcoin/regtest, shard 2/2" in status.output, status.output
        for daemon in made:
            assert daemon.term() == 0
            daemon.assert_sound()


def test_a_second_splitter_takes_over(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f", rpc, nats.url), splitter(tmp_path / "1", nats.url, 3) as first:
        until(lambda: f"{REGTEST}_3_OF_3" in streams(nats))
        with splitter(tmp_path / "2", nats.url, 3) as second, shards(tmp_path, nats.url, 3) as made:
            until(lambda: "standing by" in second.file.read_text())
            assert_joined(made, node)
            node.mine(2)
            first.kill()
            node.reorganise(1, 3)
            assert_joined(made, node)
            assert second.process.poll() is None
        assert_each_once(nats.url, 3, node.height)


def streams(nats: Server) -> list[str]:
    return [path.name for path in (nats.folder / "data").rglob(f"{REGTEST}*")]


def test_a_store_of_another_shard_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, chain=BITCOIN, cluster={"shard": "3/4"}) as daemon:
        daemon.term()
        for shard, named in (("1/4", ", shard 1/4"), ("3/8", ", shard 3/8"), (None, "")):
            daemon.configure(chain=BITCOIN, cluster={} if shard is None else {"shard": shard})
            done = daemon.run("run")
            assert done.returncode == 3
            why = f"this store is for bitcoin/regtest, shard 3/4, but the configuration is for bitcoin/regtest{named}"
            assert why in done.stderr.decode()


def test_two_shards_become_four(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with (
        feeder(tmp_path / "f", rpc, nats.url),
        splitter(tmp_path / "2", nats.url, 2),
        shards(tmp_path, nats.url, 2) as made,
    ):
        assert_joined(made, node)
        for number, daemon in enumerate(made, 1):
            assert daemon.run("backup", tmp_path / f"copy{number}").returncode == 0
        node.mine(2)
        node.reorganise(4, 5)  # of blocks that the backups have
        assert_joined(made, node)
        for number in (1, 2, 3, 4):
            copy, place = tmp_path / f"copy{(number - 1) % 2 + 1}", tmp_path / "quarters" / f"shard{number}of4" / "data"
            done = cli("restore", copy, place, "--shard", f"{number}/4", "--verify")
            assert done.exit_code == 0, done.output
            assert f"restored shard {number}/4 of the backup of bitcoin/regtest, shard" in done.output
        wrong = cli("restore", tmp_path / "copy1", tmp_path / "x", "--shard", "2/4")
        assert wrong.exit_code == 3 and "shard 2/4 is not a part of that" in wrong.output
        with (
            splitter(tmp_path / "4", nats.url, 4, "--after", "20"),
            shards(tmp_path / "quarters", nats.url, 4) as quarters,
        ):
            assert_joined(quarters, node)
            assert_joined(made, node)  # which went on answering
            node.reorganise(6, 7)
            assert_joined(quarters, node)
            for daemon in quarters:
                daemon.assert_sound()
            (tmp_path / "empty").mkdir()
            with running(tmp_path / "empty", chain=BITCOIN, cluster={"shard": "1/4"}) as empty:
                done = cli("feed", "--config", empty.config, "stream", nats.url, "--shard", "1/4")
                assert done.exit_code == 1
                assert f"stream {REGTEST}_1_OF_4 begins after height 20: start from a backup of a shard" in done.output
