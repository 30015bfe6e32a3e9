"""`utxod feed cardano-chunks --follow` as a real process beside a real daemon, while a node's folder grows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitcoin_feeds import cli, exported, tip_of, wait_until
from daemons import PATIENCE_S, Daemon, environment, running
from test_cardano_made_blocks import KEY_ADDRESS, NO_HASH, Made, body, decode, shelley_block

PREVIEW = {"family": "cardano", "network": "preview"}


def made_chain(length: int) -> list[bytes]:
    """Return blocks of one transaction each, which spends what the one before made."""
    blocks: list[bytes] = []
    previous, inputs = NO_HASH, list[list[bytes | int]]()
    for height in range(1, length + 1):
        made: Made = (body(f0=inputs, f1=[[KEY_ADDRESS, height]]), {}, None)
        blocks.append(shelley_block([made], height=height, slot=20 * height, previous=previous))
        block = decode(blocks[-1])
        previous, inputs = block.hash, [[block.txs[0].txid, 0]]
    return blocks


BLOCKS = made_chain(12)


def left_after(height: int) -> list[str]:
    """Return the export of a daemon that is at a height."""
    (tx,) = decode(BLOCKS[height - 1]).txs
    return [f"{tx.txid.hex()},0,{height},{KEY_ADDRESS.hex()}"]


class Following:
    """A feed that waits for chunks."""

    def __init__(self, daemon: Daemon, folder: Path, *more: str) -> None:
        command = [sys.executable, "-m", "daemon.cli", "feed", "--config", str(daemon.config), "cardano-chunks"]
        options = ["--network", "preview", "--follow", "--poll", "0.02", *more]
        self.daemon = daemon
        self._log = daemon.folder / "feed.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, str(folder), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )

    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, height: int) -> None:
        wanted = decode(BLOCKS[height - 1]).hash.hex()
        wait_until(lambda: tip_of(self.daemon) == wanted, lambda: f"{self.said()}\n{self.daemon.tail()}")
        assert self.process.poll() is None, self.said()

    def term(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextmanager
def following(daemon: Daemon, folder: Path, *more: str) -> Iterator[Following]:
    """Give a feed, and end what is left of it."""
    feed = Following(daemon, folder, *more)
    try:
        yield feed
    finally:
        feed.process.kill()
        feed.process.wait()
    assert "Traceback" not in feed.said(), feed.said()


def grow(file: Path, content: bytes) -> None:
    with file.open("ab") as more:
        more.write(content)


def test_a_folder_that_grows(tmp_path: Path) -> None:
    """Blocks arrive in halves and in new files, the daemon leaves and is killed; SIGTERM ends the feed in order."""
    folder = tmp_path / "db"
    folder.mkdir()
    first, second, third = (folder / f"0000{number}.chunk" for number in range(3))
    grow(first, b"".join(BLOCKS[:4]))
    with running(tmp_path, chain=PREVIEW) as daemon:
        with following(daemon, folder) as feed:
            feed.wait_for(4)
            grow(first, BLOCKS[4] + BLOCKS[5][:300])
            feed.wait_for(5)
            grow(first, BLOCKS[5][300:])
            feed.wait_for(6)
            grow(second, BLOCKS[6])
            feed.wait_for(7)
            daemon.restart()
            grow(second, BLOCKS[7] + BLOCKS[8])
            feed.wait_for(9)
            daemon.kill()
            grow(third, BLOCKS[9] + BLOCKS[10])
            daemon.start()
            feed.wait_for(11)
            assert exported(daemon) == left_after(11)
            assert feed.term() == 0, feed.said()
            assert "11 messages in" in feed.said().splitlines()[-1] and "height 11" in feed.said()
            assert "trying again in" in feed.said()
        grow(third, BLOCKS[11])
        done = cli("feed", "--config", daemon.config, "cardano-chunks", folder, "--network", "preview")
        assert "1 applied, height 12" in done.stderr, done.output
        assert daemon.term() == 0
        assert exported(daemon) == left_after(12)
        daemon.assert_sound()


def test_nothing_there_yet_and_a_last_height(tmp_path: Path) -> None:
    """An empty folder is waited at; the feed ends by itself with the height it was given."""
    folder = tmp_path / "db"
    folder.mkdir()
    with running(tmp_path, chain=PREVIEW) as daemon:
        with following(daemon, folder, "--network-tip", "77") as feed, daemon.client() as client:
            wait_until(lambda: client.hello()["network_tip_height"] == 77, feed.said)
            assert feed.term() == 0, feed.said()
            assert feed.said().splitlines()[-1] == "nothing to send: the daemon has all of it"
        with following(daemon, folder, "--to", "3") as feed:
            grow(folder / "00000.chunk", b"".join(BLOCKS[:5]))
            assert feed.process.wait(PATIENCE_S) == 0, feed.said()
        assert tip_of(daemon) == decode(BLOCKS[2]).hash.hex()
