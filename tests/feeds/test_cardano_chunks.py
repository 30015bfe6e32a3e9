"""Reading a database's chunk files: where to begin and end, waiting for more, and what is wrong with a file."""

import lzma
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cardano_made_blocks import NO_HASH, Made, body, boundary_block, byron_block, decode, shelley_block

from feeds.cardano.chunks import blocks_in, chunk_files, read_chain
from feeds.cardano.eras import MAINNET
from feeds.cardano.errors import BlockError, ChainError, CutShort, SourceError
from handlers.events import BlockApplied, Point

BYRON_SLOTS = 4_492_800


def made_chain() -> list[bytes]:
    """Return 12 blocks: two epochs of Byron with their boundary blocks, then Shelley and Babbage."""
    blocks = [boundary_block(height=0, epoch=0, previous=NO_HASH)]
    for height, slot in ((1, 0), (2, 9), (3, 21_599)):
        blocks.append(byron_block([], height=height, slot=slot, previous=decode(blocks[-1]).hash))
    blocks.append(boundary_block(height=3, epoch=1, previous=decode(blocks[-1]).hash))
    for height, slot in ((4, 21_600), (5, 21_700)):
        blocks.append(byron_block([], height=height, slot=slot, previous=decode(blocks[-1]).hash))
    for height, era in ((6, 2), (7, 2), (8, 6), (9, 6), (10, 6)):
        txs: list[Made] = [(body(f0=[[bytes([height]) * 32, 0]]), {}, None)] * (height % 3)
        previous = decode(blocks[-1]).hash
        blocks.append(shelley_block(txs, era=era, height=height, slot=BYRON_SLOTS + height, previous=previous))
    return blocks


CHAIN = made_chain()
BLOCKS = [decode(raw) for raw in CHAIN]


def write(folder: Path, *sizes: int, name: Callable[[int], str] = "{:05}.chunk".format) -> Path:
    blocks = iter(CHAIN)
    for number, size in enumerate(sizes):
        content = b"".join(islice(blocks, size))
        file = folder / name(number)
        file.write_bytes(lzma.compress(content) if file.suffix == ".xz" else content)
    return folder


def read(folder: Path, **options: Any) -> list[BlockApplied]:
    return list(read_chain(folder, MAINNET, **options))


@pytest.mark.parametrize("name", ["{:05}.chunk", "{:05}.chunk.xz", "epoch{:02}.chunks.xz"])
def test_files_are_read_in_order(tmp_path: Path, name: str) -> None:
    assert read(write(tmp_path, 4, 3, 0, 5, name=name.format)) == BLOCKS


def test_chunks_are_found_in_the_folder_or_below(tmp_path: Path) -> None:
    (tmp_path / "immutable").mkdir()
    write(tmp_path / "immutable", 4, 8, name="9999{}.chunk".format)
    (tmp_path / "immutable" / "99991.chunk").rename(tmp_path / "immutable" / "100000.chunk")
    (tmp_path / "immutable" / "99990.primary").write_bytes(b"index")
    assert [file.name for file in chunk_files(tmp_path)] == ["99990.chunk", "100000.chunk"]
    assert read(tmp_path) == BLOCKS
    assert read(tmp_path / "immutable" / "99990.chunk") == BLOCKS[:4]


def test_a_folder_has_chunks_each_counted_once(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SourceError, match="no chunk files"):
            read(folder)
    write(tmp_path, 12)
    write(tmp_path, 12, name="{:05}.chunk.xz".format)
    assert read(tmp_path) == BLOCKS


@pytest.mark.parametrize("sizes", [(12,), (1,) * 12, (4, 3, 5), (0, 4, 0, 8)])
def test_begin_after_a_known_point(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    folder = write(tmp_path, *sizes)
    for known in range(12):
        assert read(folder, after=[BLOCKS[known].point]) == BLOCKS[known + 1 :]


def test_begin_after_the_first_point_that_is_known(tmp_path: Path) -> None:
    write(tmp_path, 4, 3, 5)
    fork = Point(BLOCKS[9].height, BLOCKS[9].point.slot, b"\xff" * 32)
    far = Point(10**6, 10**9, b"\xfe" * 32)
    assert read(tmp_path, after=[far, fork, BLOCKS[8].point, BLOCKS[2].point]) == BLOCKS[9:]
    assert read(tmp_path, after=[far, fork]) == BLOCKS


def test_end_with_a_height(tmp_path: Path) -> None:
    write(tmp_path, 4, 3, 5)
    for height in range(12):
        expected = [block for block in BLOCKS if block.height <= height]  # a boundary block has that of its parent
        assert read(tmp_path, to_height=height) == expected
        assert read(tmp_path, to_height=height, after=[expected[-1].point]) == []
        assert read(tmp_path, to_height=height, after=[BLOCKS[-1].point]) == []


def test_a_missing_chunk_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 4, 3, 5)
    (tmp_path / "00001.chunk").unlink()
    with pytest.raises(ChainError, match=r"00002.chunk: block [0-9a-f]{64} \(height 6\) does not follow"):
        read(tmp_path)
    with pytest.raises(ChainError):
        read(tmp_path, after=[BLOCKS[3].point])


def test_waiting_for_a_growing_file(tmp_path: Path) -> None:
    stream, arrived, seen = b"".join(CHAIN), 0, 0

    def arrive() -> bool:
        nonlocal arrived
        assert seen == whole_blocks(arrived)
        if arrived == len(stream):
            return False
        with (tmp_path / "00000.chunk").open("ab") as file:
            file.write(stream[arrived : arrived + 1000])
        arrived = min(arrived + 1000, len(stream))
        return True

    for block in read_chain(tmp_path, MAINNET, wait=arrive):
        assert block == BLOCKS[seen]
        seen += 1
    assert seen == len(BLOCKS)


def whole_blocks(size: int) -> int:
    return sum(sum(map(len, CHAIN[: index + 1])) <= size for index in range(len(CHAIN)))


def test_waiting_for_new_files(tmp_path: Path) -> None:
    pieces = [CHAIN[:2], CHAIN[2:4], [], CHAIN[4:7], CHAIN[7:11], CHAIN[11:]]
    waits = 0

    def arrive() -> bool:
        nonlocal waits
        if waits == len(pieces):
            return False
        # The last file gets the rest of its blocks in the same moment in which the next one appears.
        file = tmp_path / f"{waits // 2:05}.chunk"
        file.write_bytes((file.read_bytes() if file.exists() else b"") + b"".join(pieces[waits]))
        waits += 1
        return True

    assert read(tmp_path, wait=arrive) == BLOCKS


def test_an_unfinished_block_is_waited_for_in_the_last_file_only(tmp_path: Path) -> None:
    write(tmp_path, 4, 8)
    file = tmp_path / "00000.chunk"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CutShort, match=r"00000.chunk, byte \d+: the block is cut off"):
        read(tmp_path, wait=lambda: True)
    write(tmp_path, 4, 8)
    file = tmp_path / "00001.chunk"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CutShort):
        read(tmp_path)
    assert read(tmp_path, wait=lambda: False) == BLOCKS[:-1]
    file.write_bytes(CHAIN[4][:20])
    assert read(tmp_path, wait=lambda: False, after=[BLOCKS[2].point]) == BLOCKS[3:4]


def test_a_removed_file_is_refused(tmp_path: Path) -> None:
    def vanish() -> bool:
        (tmp_path / "00000.chunk").rename(tmp_path / "00001.chunk")
        return True

    with pytest.raises(SourceError, match="this file was removed while it was read"):
        read(write(tmp_path, 12), wait=vanish)


@given(window=st.integers(1, 3000), start=st.integers(0, 11))
def test_any_window_gives_the_same_blocks(tmp_path_factory: pytest.TempPathFactory, window: int, start: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "window"
    folder.mkdir(exist_ok=True)
    file = write(folder, 12) / "00000.chunk"
    offset = sum(map(len, CHAIN[:start]))
    found = list(blocks_in(file, MAINNET, offset, window))
    assert [block for block, _ in found] == BLOCKS[start:]
    assert [end for _, end in found] == [sum(map(len, CHAIN[: index + 1])) for index in range(start, 12)]


def test_an_error_names_file_and_place(tmp_path: Path) -> None:
    write(tmp_path, 4, 8)
    file = tmp_path / "00001.chunk"
    content = file.read_bytes()
    place = len(CHAIN[4]) + 1
    file.write_bytes(content[:place] + b"\x09" + content[place + 1 :])
    blocks = read_chain(tmp_path, MAINNET)
    assert list(islice(blocks, 5)) == BLOCKS[:5]
    with pytest.raises(BlockError) as caught:
        next(blocks)
    assert str(caught.value) == f"{file}, byte {place - 1}: era 9 is unknown"
    assert (caught.value.file, caught.value.offset) == (file, place - 1)


def test_an_endless_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeds.cardano.chunks.MAX_BLOCK_BYTES", 100_000)
    (tmp_path / "00000.chunk").write_bytes(b"\x82\x06\x9f" + b"\x00" * 200_000)
    with pytest.raises(BlockError, match="a block of more than 100000 bytes"):
        read(tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-20], lambda raw: b"no xz" + raw, lambda raw: raw[:60] + raw[61:]])
def test_damaged_xz_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = write(tmp_path, 12, name="{:05}.chunk.xz".format) / "00000.chunk.xz"
    file.write_bytes(damage(file.read_bytes()))
    for offset in (0, len(b"".join(CHAIN))):
        with pytest.raises(BlockError, match="the xz file is cut off or damaged"):
            list(blocks_in(file, MAINNET, offset))
