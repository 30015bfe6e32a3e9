"""Raw blocks as hex, one a line: plain or compressed, one file or many, in any order."""

import lzma
import random
from pathlib import Path

import pytest
from bitcoin_chains import read_chain
from real_data import lines, names, need
from test_bitcoin_blkfiles import CHAIN, expect, hashes, made_chain
from test_bitcoin_block import hash_of

from feeds.bitcoin import hexfiles
from feeds.bitcoin.errors import BlockError, ChainError
from feeds.bitcoin.networks import REGTEST, TESTNET3
from feeds.bitcoin.source import Chain, Options
from handlers.events import Point


def write(path: Path, blocks: list[bytes]) -> Path:
    text = "".join(f"{raw.hex()}\n" for raw in blocks).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)
    return path


@pytest.mark.parametrize("name", ["blocks.hex", "blocks.hex.xz", "blocks.txt", "blocks"])
def test_one_file(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, random.Random(2).sample(CHAIN, len(CHAIN)))
    assert hashes(path) == expect(*CHAIN)
    assert [block.height for block in read_chain(path, REGTEST, [Point(4, 4, hash_of(CHAIN[3]))], 6)] == [5, 6]


def test_a_folder(tmp_path: Path) -> None:
    other = made_chain(2, note=b"stale")
    write(tmp_path / "b.hex", CHAIN[:7])
    write(tmp_path / "a.hex.xz", CHAIN[7:] + other)
    (tmp_path / "readme.txt").write_text("no block")
    with Chain(tmp_path, REGTEST) as chain:
        assert [block.hash for block in chain.blocks()] == expect(*CHAIN)
        assert [point.hash for point in chain.stale] == expect(*other)


def test_shuffled_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hexfiles, "_IN_MEMORY", 10_000)
    texts = list(lines(need(names("bitcoin/testnet3-1-*.hex.xz")[0])))
    raws = [bytes.fromhex(text) for text in texts]
    path = write(tmp_path / "shuffled.hex.xz", random.Random(3).sample(raws, len(raws)))
    assert hashes(path, TESTNET3) == expect(*raws)


def test_empty_and_upper_case_lines(tmp_path: Path) -> None:
    path = tmp_path / "blocks.hex"
    path.write_text(f"\n{CHAIN[0].hex().upper()}  \r\n\n{CHAIN[1].hex()}")
    assert hashes(path) == expect(*CHAIN[:2])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("zz", "line 2: Non-hexadecimal digit found"),
        ("abc", "line 2: Odd-length string"),
        ("abcd", "line 2: 2 bytes are not a block"),
        (CHAIN[1].hex()[:-2], "line 2, block 2: transaction 0 at byte 81 continues after the last byte"),
        (CHAIN[1].hex() + "00", "line 2, block 2: 1 excess bytes"),
        (CHAIN[2].hex(), f"line 2: block {hash_of(CHAIN[2]).hex()} follows {hash_of(CHAIN[1]).hex()}, which is"),
        ("00" * 4_000_001, "line 2: it is longer than any block"),
    ],
    ids=lambda value: value[-40:],
)
def test_malformed_lines_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "blocks.hex"
    path.write_text(f"{CHAIN[0].hex()}\n{line}\n")
    with pytest.raises((BlockError, ChainError), match=f"^blocks.hex, {message}"):
        hashes(path)


def test_errors_name_the_file_of_many(tmp_path: Path) -> None:
    write(tmp_path / "a.hex", CHAIN[:3])
    write(tmp_path / "b.hex", [*CHAIN[3:5], CHAIN[5] + b"\0", *CHAIN[6:]])
    write(tmp_path / "c.hex", CHAIN[:1])
    with pytest.raises(BlockError, match=r"^b\.hex, line 3, block 6: 1 excess bytes"):
        hashes(tmp_path)


def test_damaged_compression(tmp_path: Path) -> None:
    path = write(tmp_path / "blocks.hex.xz", CHAIN)
    whole = path.read_bytes()
    for damaged in (whole[:-40], b"no xz at all", whole[:60] + b"\xff" * 8 + whole[68:]):
        path.write_bytes(damaged)
        with pytest.raises(ChainError, match=r"blocks\.hex\.xz: "):
            hashes(path)


def test_missing_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ChainError, match="the folder has no blk"):
        hashes(tmp_path)
    empty = tmp_path / "empty.hex"
    empty.touch()
    with pytest.raises(ChainError, match=r"empty\.hex: the files have no block"):
        hashes(empty)
    with pytest.raises(FileNotFoundError):
        hashes(tmp_path / "nowhere")


def test_headers_without_work(tmp_path: Path) -> None:
    lazy = CHAIN[0][:76] + b"\0\0\0\0" + CHAIN[0][80:]
    nonce = 0
    while hash_of(lazy)[0] < 0x80:
        nonce += 1
        lazy = lazy[:76] + nonce.to_bytes(4, "little") + lazy[80:]
    path = write(tmp_path / "lazy.hex", [lazy])
    with pytest.raises(BlockError, match=r"lazy.hex, line 1: block [0-9a-f]+ does not meet its own target"):
        hashes(path)
    assert hashes(path, options=Options(check_work=False)) == [hash_of(lazy)]
