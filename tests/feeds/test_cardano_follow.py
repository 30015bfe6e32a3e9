"""`utxod feed cardano-chunks --follow` as a process, while the folder of a node grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitcoin_feeds import cli, exported, tip_of
from daemons import PATIENCE_S, Daemon, background, running
from patience import until
from test_cardano_made_blocks import KEY_ADDRESS, NO_HASH, Made, body, decode, shelley_block

PREVIEW = {"family": "cardano", "network": "preview"}


def made_chain(length: int) -> list[bytes]:
    """Return blocks of one transaction each, which spends the output of the transaction before."""
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
    (tx,) = decode(BLOCKS[height - 1]).txs
    return [f"{tx.txid.hex()},0,{height},{KEY_ADDRESS.hex()}"]


class Following:
    def __init__(self, daemon: Daemon, folder: Path, *more: str) -> None:
        options = ["--network", "preview", "--follow", "--poll", "0.02", *more]
        self.daemon, self._file = daemon, daemon.folder / "feed.log"
        self._file.write_bytes(b"")
        self.process = background(self._file, "feed", "--config", daemon.config, "cardano-chunks", folder, *options)

    def log(self) -> str:
        return self._file.read_text()

    def wait_for(self, height: int) -> None:
        wanted = decode(BLOCKS[height - 1]).hash.hex()
        until(lambda: tip_of(self.daemon) == wanted, why=self.log())
        assert self.process.poll() is None, self.log()

    def term(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextmanager
def following(daemon: Daemon, folder: Path, *more: str) -> Iterator[Following]:
    feed = Following(daemon, folder, *more)
    try:
        yield feed
    finally:
        feed.process.kill()
        feed.process.wait()
    assert "Traceback" not in feed.log(), feed.log()


def grow(file: Path, content: bytes) -> None:
    with file.open("ab") as more:
        more.write(content)


def test_a_growing_folder_is_followed(tmp_path: Path) -> None:
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
            assert feed.term() == 0, feed.log()
            assert "11 messages in" in feed.log().splitlines()[-1] and "height 11" in feed.log()
            assert "trying again in" in feed.log()
        grow(third, BLOCKS[11])
        done = cli("feed", "--config", daemon.config, "cardano-chunks", folder, "--network", "preview")
        assert "1 applied, height 12" in done.stderr, done.output
        assert daemon.term() == 0
        assert exported(daemon) == left_after(12)
        daemon.assert_sound()


def test_an_empty_folder_is_waited_for_and_a_height_ends_the_feed(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    folder.mkdir()
    with running(tmp_path, chain=PREVIEW) as daemon:
        with following(daemon, folder, "--network-tip", "77") as feed, daemon.client() as client:
            until(lambda: client.hello()["network_tip_height"] == 77)
            assert feed.term() == 0, feed.log()
            assert feed.log().splitlines()[-1] == "nothing to send: the daemon has all blocks"
        with following(daemon, folder, "--to", "3") as feed:
            grow(folder / "00000.chunk", b"".join(BLOCKS[:5]))
            assert feed.process.wait(PATIENCE_S) == 0, feed.log()
        assert tip_of(daemon) == decode(BLOCKS[2]).hash.hex()
