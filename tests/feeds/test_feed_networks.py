"""A feed and a daemon have to mean the same chain: a wrong network would be wrong times, events by nobody."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from bitcoin_feeds import cli, exported, fake_daemon, feed_link
from daemons import Daemon, encoded, running
from ogmios_server import serving
from scenarios import chain
from test_bitcoin_blkfiles import CHAIN, record, write
from test_cardano_chunks import write as write_chunks
from test_cardano_made_blocks import decode, shelley_block
from test_ogmios_chain import blocks

from feeds.errors import FeedError
from feeds.link import Link
from handlers.events import BlockPersisted, ChainName

PREVIEW = {"family": "cardano", "network": "preview"}


def run(daemon: Daemon, *arguments: str | Path | int) -> tuple[int, str]:
    done = cli("feed", "--config", daemon.config, *arguments, "--wait", 5)
    assert "Traceback" not in done.output
    return done.exit_code, done.stderr.splitlines()[-1]


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def other(kept: str, fed: str) -> tuple[int, str]:
    there = f"the daemon keeps {kept}, this feed sends {fed}"
    return 1, f"Error: {there}: check --network of the feed, and chain.family and chain.network of the daemon"


def test_every_feed_refuses_a_daemon_of_another_chain(tmp_path: Path) -> None:
    write(folder(tmp_path, "blocks"), 0, b"".join(map(record, CHAIN)))
    write_chunks(folder(tmp_path, "db"), 12)
    (tmp_path / "events").write_bytes(b"".join(encoded(message, "json") for message in chain(3)))
    with running(tmp_path, chain=PREVIEW) as daemon, serving(blocks(3)) as server:
        for fed, *arguments in (
            ("bitcoin/regtest", "bitcoin-blocks", tmp_path / "blocks", "--network", "regtest"),
            ("bitcoin/mainnet", "bitcoin-rpc", "http://127.0.0.1:1"),
            ("cardano/mainnet", "cardano-chunks", tmp_path / "db", "--network", "mainnet"),
            ("cardano/preprod", "ogmios", server.url, "--network", "preprod"),
            ("cardano/mainnet", "file", tmp_path / "events", "--chain", "cardano/mainnet"),
        ):
            assert run(daemon, *arguments) == other("cardano/preview", str(fed))
        assert exported(daemon) == []
        with daemon.client() as client:
            assert client.hello()["tip"] is None
        assert run(daemon, "file", tmp_path / "events", "--chain", "cardano/preview")[0] == 0
        assert exported(daemon) != []


def test_the_network_of_a_feed_defaults_to_the_daemons(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN)))
    with running(folder(tmp_path, "r"), chain={"family": "bitcoin", "network": "regtest"}) as daemon:
        code, line = run(daemon, "bitcoin-blocks", tmp_path)
        assert (code, "12 applied, height 12" in line) == (0, True), line
    with running(folder(tmp_path, "d"), chain={"family": "bitcoin", "network": "private"}) as daemon:
        code, line = run(daemon, "bitcoin-blocks", tmp_path)
        assert code == 1 and "the daemon keeps bitcoin/private; this feed supports mainnet, testnet3" in line
    with running(folder(tmp_path, "a"), chain={"family": "raw", "network": "any"}) as daemon:
        code, line = run(daemon, "bitcoin-blocks", tmp_path, "--network", "regtest")
        assert (code, "12 applied, height 12" in line) == (0, True), line


def test_without_a_daemon_the_network_is_mainnet(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN)))
    started = time.monotonic()
    done = cli("feed", "bitcoin-blocks", tmp_path, "--socket", tmp_path / "s", "--wait", 0.1)
    assert done.exit_code == 1 and "no daemon listens on" in done.stderr.splitlines()[-1]
    assert time.monotonic() - started < 5
    assert cli("feed", "bitcoin-blocks", tmp_path, "--dry-run").exit_code == 1  # its magic is not that of mainnet


def test_a_daemon_that_changes_its_network_is_refused(tmp_path: Path) -> None:
    link = Link(tmp_path / "s", chain=ChainName("cardano", "preview"), patience_s=5)
    with (
        fake_daemon(tmp_path / "s", (PREVIEW, []), (PREVIEW | {"network": "mainnet"}, [])),
        pytest.raises(FeedError, match="the daemon keeps cardano/mainnet, this feed sends cardano/preview"),
    ):
        anyio.run(feed_link, link, BlockPersisted(height=1))


@pytest.mark.parametrize("text", ["cardano", "/mainnet", "cardano/", ""])
def test_malformed_chain_names_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "events").touch()
    done = cli("feed", "file", tmp_path / "events", "--chain", text)
    assert done.exit_code == 2 and "expected FAMILY/NETWORK, such as cardano/mainnet" in done.stderr


SHELLEY: dict[str, Any] = {"initialFunds": {}, "slotLength": 1, "epochLength": 432_000, "networkMagic": 1}
SHELLEY |= {"systemStart": "2022-06-01T00:00:00Z"}
DEVNET = SHELLEY | {"epochLength": 500, "slotLength": 0.5, "networkMagic": 42, "systemStart": "2020-09-13T12:26:40Z"}
BYRON = {
    "startTime": 1_600_000_000,
    "protocolConsts": {"k": 432, "protocolMagic": 42},
    "blockVersionData": {"slotDuration": "1000"},
    "nonAvvmBalances": {},
}


def dry(*arguments: str | Path) -> tuple[int, str]:
    done = cli("feed", *arguments, "--dry-run")
    assert "Traceback" not in done.output
    return done.exit_code, done.stderr.splitlines()[-1]


def genesis(folder: Path, document: dict[str, Any], name: str = "genesis.json") -> Path:
    (folder / name).write_text(json.dumps(document))
    return folder / name


SLOTS = (8640, 8643, 9140, 9141)


def later_chain(folder: Path) -> None:
    """Write blocks of an era whose blocks do not name their network."""
    folder.mkdir(parents=True)
    raws: list[bytes] = []
    for height, slot in enumerate(SLOTS):
        previous = decode(raws[-1]).hash if raws else bytes(32)
        raws.append(shelley_block([], era=6, height=height, slot=slot, previous=previous))
    (folder / "00000.chunk").write_bytes(b"".join(raws))


def test_a_genesis_of_another_network_is_refused(tmp_path: Path) -> None:
    later_chain(tmp_path / "db")
    file = genesis(tmp_path, SHELLEY)
    common = ("cardano-chunks", tmp_path / "db", "--genesis", file)
    assert dry(*common, "--network", "preprod")[0] == 0
    start = "start is 1654041600, expected 1666656000"
    assert dry(*common, "--network", "preview") == (1, f"Error: {file}: not a genesis file of preview: {start}")
    start = "start is 1654041600, expected 1506203091"
    assert dry(*common) == (1, f"Error: {file}: not a genesis file of mainnet: {start}")
    assert dry("ogmios", "ws://127.0.0.1:1", "--genesis", file)[1].endswith(start)
    genesis(tmp_path, SHELLEY | {"networkMagic": 9})
    assert dry(*common, "--network", "preprod")[1].endswith("not a genesis file of preprod: magic is 9, expected 1")


def test_private_networks_need_their_genesis_files(tmp_path: Path) -> None:
    later_chain(tmp_path / "db")
    shelley, byron = genesis(tmp_path, DEVNET), genesis(tmp_path, BYRON, "byron.json")
    common = ("cardano-chunks", tmp_path / "db", "--network", "devnet")
    none = "Error: network devnet is not one of mainnet, preprod, preview: pass its Shelley genesis file"
    assert dry(*common)[1].startswith(none)
    assert dry(*common, "--genesis", byron)[1].startswith(none)
    assert "pass its Byron genesis file too" in dry(*common, "--genesis", shelley, "--byron-epochs", "2")[1]
    out = tmp_path / "events"
    done = cli("feed", *common, "--genesis", shelley, "--genesis", byron, "--byron-epochs", "2", "--output", out)
    assert done.exit_code == 0, done.stderr
    events = [json.loads(line) for line in out.read_text().splitlines()]
    applied = [message for message in events if message["type"] == "BlockApplied"]
    times = [(each["slot"], each["time"] - 1_600_000_000, each["epoch"]) for each in applied]
    assert times == [(8640, 8640, 2), (8643, 8641, 2), (9140, 8890, 3), (9141, 8890, 3)]
    wrong = dry("cardano-chunks", tmp_path / "db", "--byron-epochs", "2")[1]
    assert "Byron lasted 208 epochs on mainnet, not 2" in wrong


def test_the_magic_of_a_database_has_to_match(tmp_path: Path) -> None:
    later_chain(tmp_path / "db" / "immutable")
    magic = tmp_path / "db" / "protocolMagicId"
    for folder in (tmp_path / "db", tmp_path / "db" / "immutable"):
        magic.write_text("1")
        assert dry("cardano-chunks", folder, "--network", "preprod")[0] == 0
        why = "the magic number 1 belongs to preprod, not to preview: see --network"
        assert dry("cardano-chunks", folder, "--network", "preview") == (1, f"Error: {magic}: {why}")
        magic.write_text("77\n")
        assert "the magic number 77 belongs to an unknown network" in dry("cardano-chunks", folder)[1]
        magic.write_text("?")
        assert dry("cardano-chunks", folder)[0] == 0


def test_the_magic_of_byron_blocks_has_to_match(tmp_path: Path) -> None:
    file = write_chunks(tmp_path, 12) / "00000.chunk"
    why = "the magic number 764824073 belongs to mainnet, not to preprod: see --network"
    assert dry("cardano-chunks", tmp_path, "--network", "preprod") == (1, f"Error: {file}: {why}")
    assert dry("cardano-chunks", tmp_path)[0] == 0
