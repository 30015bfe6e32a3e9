"""A real daemon fed from a server: whatever happens on the way, in the end it has what the chain has.

The expected sums are those of an independent decoder of the same blocks.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from daemons import Daemon, environment, home, running
from msgspec.structs import replace
from ogmios_messages import Json
from ogmios_server import Chain, OgmiosServer, Troubles, chain_of, serving, told
from real_data import found, lines, need, rows
from test_cardano_runs import PlainSet
from test_ogmios_blocks import made_output, made_tx
from test_ogmios_chain import blocks

from feeds.cardano.chunks import blocks_in, read_chain
from feeds.cardano.eras import PREVIEW
from handlers import wire
from handlers.events import BlockApplied, GenesisOutput, GenesisOutputs, OutPoint, Output

EPOCH = "cardano/preview-genesis-run/epoch13.chunks.xz"
GENESIS = "cardano/preview-genesis-100"
CHAIN = {"family": "cardano", "network": "preview"}
PREVIEW_ONLY = ("--network", "preview")


def feed(daemon: Daemon, *arguments: str | Path | int) -> str:
    """Run a feed to its end; return what it says."""
    done = daemon.run("feed", *map(str, arguments))
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


def refused(daemon: Daemon, *arguments: str | Path | int) -> str:
    """Run a feed that fails; return its last line."""
    done = daemon.run("feed", *map(str, arguments))
    assert done.returncode == 1, done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    return done.stderr.decode().splitlines()[-1]


def acc(export: list[str]) -> str:
    """Return the sum over a set that the data's README tells of."""
    total = 0
    for line in export:
        txid, index, value, _ = line.split(",")
        total += int.from_bytes(hashlib.sha256(f"{txid}:{index}:{value}\n".encode()).digest(), "big")
    return f"{total % 2**256:064x}"


def expected(run: str, height: int) -> Json:
    """Return what is expected after a block."""
    return next(
        row for row in rows(need(f"expected/{run.replace('/', '-')}.blocks.jsonl.xz")) if row["height"] == height
    )


def assert_expected(daemon: Daemon, run: str, height: int) -> None:
    row, export = expected(run, height), daemon.export()
    assert (len(export), acc(export)) == (row["utxo_count"], row["acc"])
    assert daemon.status()["tip"]["hash"] == row["hash"]
    daemon.assert_sound()


class Stretch(NamedTuple):
    """Blocks from the middle of a chain in which transactions fail, and what was live before them.

    `odds` are those of trouble after a block, and `deepest` of its forks, so that every kind of it happens.
    """

    run: str
    blocks: list[BlockApplied]
    live: dict[OutPoint, Output]
    odds: float
    deepest: int


def short_stretch() -> Stretch:
    """Return a whole run, with the outputs that it spends."""
    run = "cardano/preview-babbage-52558"
    return Stretch(run, list(read_chain(need(run), PREVIEW)), coins_in(f"{run}/prevouts.csv.xz").coins, 0.2, 8)


def long_stretch() -> Stretch:
    """Return a part of the epoch of which the set before it is known."""
    run, first, last = "cardano/preview-genesis-run", 52_500, 53_250
    coins = coins_in("expected/cardano-preview-genesis-run.utxo-after-epoch12.csv.xz")
    blocks = [block for block, _ in blocks_in(need(EPOCH), PREVIEW)]
    for block in blocks:
        if block.height < first:
            for tx in block.txs:
                coins.apply(tx)
    return Stretch(run, [block for block in blocks if first <= block.height <= last], coins.coins, 0.02, 40)


def coins_in(file: str) -> PlainSet:
    coins = PlainSet()
    for line in lines(need(file)):
        txid, index, value, address = line.split(",")
        coins.coins[bytes.fromhex(txid), int(index)] = Output(bytes.fromhex(address), int(value))
    return coins


@pytest.fixture(scope="module", params=[short_stretch, *[long_stretch for _ in found([EPOCH])]])
def stretch(request: pytest.FixtureRequest) -> Stretch:
    made: Stretch = request.param()
    return made


def before(stretch: Stretch) -> BlockApplied:
    """Return a block without transactions in the place of the one before the stretch."""
    first = stretch.blocks[0]
    assert first.slot is not None and first.prev_hash is not None
    place = {"height": first.height - 1, "slot": first.slot - 1, "hash": first.prev_hash, "prev_hash": bytes(32)}
    return replace(first, txs=[], **place)


@pytest.fixture(scope="module")
def begun(stretch: Stretch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a daemon that has what is live before the first block, and the block there."""
    seed = GenesisOutputs(outputs=[GenesisOutput(*point, output) for point, output in stretch.live.items()])
    folder = tmp_path_factory.mktemp("begun")
    (folder / "begin").write_bytes(wire.encode(seed, "frames") + wire.encode(before(stretch), "frames"))
    with running(folder, chain=CHAIN) as daemon:
        feed(daemon, "file", folder / "begin")
        assert daemon.term() == 0
    return folder


@pytest.fixture
def daemon(begun: Path, tmp_path: Path) -> Iterator[Daemon]:
    """Give a daemon of its own that begins there."""
    with home(tmp_path, chain=CHAIN) as daemon:
        shutil.copytree(begun / "data", tmp_path / "data")
        daemon.start()
        yield daemon


@pytest.mark.parametrize("seed", range(2))
def test_a_stretch_of_preview(seed: int, daemon: Daemon, stretch: Stretch) -> None:
    """The chain forks, connections break, daemon and feeder are killed and come back."""
    last = stretch.blocks[-1].height
    with serving(told([before(stretch), *stretch.blocks])) as server:
        kills = {"daemon": 0, "feeder": 0}
        process: subprocess.Popen[bytes]

        def kill_daemon(_: object) -> None:
            if kills["daemon"] < 3:
                kills["daemon"] += 1
                daemon.kill()
                daemon.start()

        def kill_feeder(_: object) -> None:
            if kills["feeder"] < 2:
                kills["feeder"] += 1
                process.kill()

        troubles = Troubles(server, seed, odds=stretch.odds, deepest=stretch.deepest, more=[kill_daemon, kill_feeder])
        for _ in range(10):
            process = follower(daemon, server, last)
            _, said = process.communicate(timeout=30)
            if process.returncode >= 0:
                break
        assert process.returncode == 0, said.decode()
        assert all(kills.values()) and {"back", "drop"} <= set(troubles.happened), troubles.happened
    assert daemon.term() == 0
    assert "rolled_back" in daemon.events()
    assert_expected(daemon, stretch.run, last)


def follower(daemon: Daemon, server: OgmiosServer, last: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "daemon.cli", "feed", "--socket", str(daemon.socket), "ogmios", server.url]
    options = ["--network", "preview", "--to", str(last), "--wait", "20"]
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment())


def test_from_genesis_to_a_file(tmp_path: Path) -> None:
    """A dry run counts, a file can be fed later: the set is the same, and nothing but events is in it."""
    run = need(GENESIS)
    genesis = ["--network", "preview", "--genesis", str(run / "genesis.json"), "--to", "80"]
    first = list(read_chain(run, PREVIEW))
    with serving(told(first)) as server, running(tmp_path, chain=CHAIN) as daemon:
        assert "82 messages" in feed(daemon, "ogmios", server.url, *genesis, "--dry-run")
        assert daemon.export() == []
        feed(daemon, "ogmios", server.url, *genesis, "--output", tmp_path / "events.jsonl")
        assert b"Hello" not in (tmp_path / "events.jsonl").read_bytes()
        assert "81 applied" in feed(daemon, "file", tmp_path / "events.jsonl")
        assert daemon.term() == 0
        assert_expected(daemon, GENESIS, 80)


def with_bad(chain: Chain, **bad: object) -> Chain:
    """Return a chain whose last block has something else in it."""
    return chain[:-1] + chain_of([chain[-1].block | bad], after=chain[-2])


BAD: dict[str, Json] = {
    "spends": {"transactions": [made_tx(spends="something")]},
    "type": {"type": "leios"},
    "era": {"era": "dijkstra"},
    "subTransactions": {"transactions": [made_tx(subTransactions=[{}])]},
    "language": {"transactions": [made_tx(made_output(script={"language": "plutus:v9", "cbor": "00"}))]},
    "address": {"transactions": [made_tx(made_output(), made_output(address="addr1qqqq"))]},
}


def test_what_is_not_understood_leaves_the_store_alone(tmp_path: Path) -> None:
    """What came before it is stored; the block itself is not, in no part."""
    chain = blocks(6)
    with running(tmp_path, chain=CHAIN) as daemon:
        with serving(with_bad(chain[:1] + chain[1:2], era="dijkstra")) as server:
            said = refused(daemon, "ogmios", server.url, *PREVIEW_ONLY)
            assert said.startswith(f"Error: {server.url}: block 2 {chain[1].id}: ")
        with serving(chain[:5]) as server:
            feed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--to", 5)
        before = daemon.export()
        for name, bad in BAD.items():
            with serving(with_bad(chain, **bad)) as server:
                said = refused(daemon, "ogmios", server.url, *PREVIEW_ONLY)
                assert said.startswith(f"Error: {server.url}: block 6 {chain[5].id}: "), name
                assert " - at `$.result.block." in said, said
            assert daemon.export() == before
        assert daemon.term() == 0
        daemon.assert_sound()
        assert daemon.status()["tip"]["height"] == 5


def test_the_first_block_is_not_understood(tmp_path: Path) -> None:
    """Not even genesis is stored then."""
    genesis = need(GENESIS) / "genesis.json"
    with running(tmp_path, chain=CHAIN) as daemon:
        with serving(chain_of([blocks(1)[0].block | {"type": "leios"}])) as server:
            refused(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--genesis", genesis)
        assert daemon.export() == []
        with serving(blocks(1)) as server:
            feed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--genesis", genesis, "--to", 1)
        assert len(daemon.export()) > 5


def test_the_daemon_hears_how_far_the_network_is(tmp_path: Path) -> None:
    """Far below the network's tip it keeps no way back; near to it, it does."""
    with running(tmp_path, chain=CHAIN) as daemon, serving(blocks(40)) as server:
        server.tip_ahead = 50_000
        feed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--to", 20)
        with daemon.client() as client:
            assert client.hello()["rollback_floor"]["height"] == 20
        server.tip_ahead = 0
        feed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--to", 40)
        with daemon.client() as client:
            assert client.hello()["rollback_floor"]["height"] == 20


def test_a_daemon_that_refuses_is_one_clear_line(tmp_path: Path) -> None:
    """The chain goes back by more than the daemon can, while blocks are on their way to it."""
    chain = blocks(30)
    small = {"rollback_window": 5, "prune_depth": 5}
    with running(tmp_path, chain=CHAIN, utxo=small) as daemon, serving(chain) as server:
        feed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--to", 30)
        other = chain[:10] + blocks(3000, chain[9], "other")
        server.on_answer = lambda n: server.switch(other)
        said = refused(daemon, "ogmios", server.url, *PREVIEW_ONLY)
        assert daemon.term() == 0
        assert daemon.status()["tip"]["height"] == 30
    assert "beyond_rollback_floor: blocks can be rolled back down to height 25" in said


def test_another_chain_is_one_clear_line(tmp_path: Path) -> None:
    with running(tmp_path, chain=CHAIN) as daemon, serving(blocks(40)) as server:
        server.tip_ahead = 50_000
        feed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--to", 20)
        server.switch(blocks(40, branch="other"))
        said = refused(daemon, "ogmios", server.url, *PREVIEW_ONLY)
    assert said.startswith(f"Error: {server.url}: the daemon is on another chain, or the server is far behind: none of")
