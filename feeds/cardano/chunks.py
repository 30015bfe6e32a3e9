"""The chain of a node's immutable database, read from its chunk files.

A chunk file is a plain concatenation of blocks; the files follow each other by name. They are read through a window,
so memory is bounded by the longest block allowed, not by a file.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from feeds.cardano.avvm import BEFORE_ALLEGRA, Vouchers
from feeds.cardano.block import MAX_BLOCK_BYTES, decode_block, magic_of
from feeds.cardano.eras import BYRON, NAMES, NETWORKS, Network
from feeds.cardano.errors import BlockError, ChainError, CutShort, SourceError
from handlers.events import BlockApplied, GenesisOutput, Point

WINDOW_BYTES = 1024 * 1024
_PEEK_BYTES = 16 * 1024
_SUFFIXES = (".chunk", ".chunk.xz", ".chunks.xz")

Wait = Callable[[], bool]
_Placed = tuple[BlockApplied, Path, int]  # a block, its file, and where it ends there


def read_chain(
    path: Path,
    network: Network,
    *,
    after: Sequence[Point] = (),
    to_height: int | None = None,
    genesis: Iterable[GenesisOutput] = (),
    wait: Wait | None = None,
) -> Iterator[BlockApplied]:
    """Return the blocks of a database, one after the other.

    They begin after the first of the points `after` that is on this chain, without one at the beginning, and end with
    the last block whose height is not above `to_height`. `genesis` is what existed before; the vouchers among it have
    an end (see `avvm`). To begin between genesis and Allegra the blocks before are read too, but not returned.

    With `wait` the chain has no end: whenever all is read it is called, should sleep, and returns whether to continue.
    A block that is only half written counts as not there yet.

    Raises:
        SourceError: there are no chunk files.
        BlockError: bytes that are not a block. The blocks before have been returned.
        ChainError: a block does not follow the one before it: a chunk is missing.
    """
    start = _find(path, network, after)
    vouchers = Vouchers(genesis)
    found, begin, offset = start or (None, None, 0)
    if found is not None:
        if _is_last(found, to_height):
            return
        if found.era in BEFORE_ALLEGRA:
            _catch_up(vouchers, path, network, found)
    blocks = _read(path, network, begin, offset, wait)
    previous = found.hash if found else None
    for block, file, _ in blocks:
        if previous not in (None, block.prev_hash):
            raise ChainError(
                f"{file}: block {block.hash.hex()} (height {block.height}) does not follow the block before it"
            )
        previous = block.hash
        if to_height is not None and block.height > to_height:
            return
        yield vouchers.follow(block)
        if _is_last(block, to_height):
            return


def _is_last(block: BlockApplied, to_height: int | None) -> bool:
    """Return whether no other block can have the last height: a boundary block of Byron repeats that before it."""
    return to_height is not None and block.height >= to_height and block.era != NAMES[BYRON]


def check_magic(path: Path, network: Network) -> None:
    """Refuse a chain of another network: a node's database names its network, and so does a block of Byron.

    Raises:
        SourceError: it is of another network.
    """
    file, stored = _stored_magic(path)
    if None in (stored, network.magic) or stored == network.magic:
        return
    whose = next((known.name for known in NETWORKS.values() if known.magic == stored), "an unknown network")
    raise SourceError(f"{file}: the magic number {stored} belongs to {whose}, not to {network.name}: see --network")


def _stored_magic(path: Path) -> tuple[Path, int | None]:
    for folder in (path, path.parent):
        file = folder / "protocolMagicId"
        if file.is_file():
            text = file.read_text(errors="replace").strip()
            return file, int(text) if text.isascii() and text.isdigit() else None
    for file in chunk_files(path)[:1]:
        with _open(file) as stream:
            return file, magic_of(_more(stream, file, _PEEK_BYTES))
    return path, None


def last_block(path: Path, network: Network) -> BlockApplied | None:
    """Return the last whole block that is there now."""
    for file in reversed(chunk_files(path)):
        block = None
        for block, _ in _whole(file, network, WINDOW_BYTES):  # noqa: B007 - the last one counts
            pass
        if block is not None:
            return block
    return None


def chunk_files(path: Path) -> list[Path]:
    """Return the chunk files of a database, or of its folder `immutable`, in the order of the chain.

    Empty files are as good as not there yet. Where a chunk is there twice, the plain file counts.
    """
    if path.is_file():
        return [path]
    if (path / "immutable").is_dir():
        path = path / "immutable"
    found: dict[str, Path] = {}
    for suffix in reversed(_SUFFIXES):
        for file in path.glob(f"*{suffix}"):
            if file.stat().st_size:
                found[file.name.removesuffix(suffix)] = file
    return [found[name] for name in sorted(found, key=lambda name: (len(name), name))]


def blocks_in(
    file: Path, network: Network, offset: int = 0, window: int = WINDOW_BYTES
) -> Iterator[tuple[BlockApplied, int]]:
    """Return the blocks of one file from `offset` on, each with where it ends.

    Raises:
        CutShort: the file ends within a block.
        BlockError: bytes that are not a block, or a block longer than allowed.
    """
    with _open(file) as stream:
        buf, at = _more(stream, file, window, offset), 0
        while buf:
            try:
                while at < len(buf):
                    block, end = decode_block(buf, network, at)
                    yield block, offset + end
                    at = end
            except CutShort as error:
                if len(buf) - at > MAX_BLOCK_BYTES:
                    raise BlockError(f"a block of more than {MAX_BLOCK_BYTES} bytes", offset + at, file) from None
                more = _more(stream, file, max(window, len(buf) - at))
                if not more:
                    raise error.placed(file, offset) from None
            except BlockError as error:
                raise error.placed(file, offset) from None
            else:
                more = _more(stream, file, window)
            offset += at
            buf, at = buf[at:] + more, 0


def _open(file: Path) -> BinaryIO:
    return cast(BinaryIO, lzma.open(file)) if file.suffix == ".xz" else file.open("rb")


def _more(stream: BinaryIO, file: Path, size: int, offset: int | None = None) -> bytes:
    try:
        if offset:
            stream.seek(offset)
        return stream.read(size)
    except (lzma.LZMAError, EOFError) as error:
        raise BlockError(f"the xz file is cut off or damaged: {error}", stream.tell(), file) from None


def _read(path: Path, network: Network, file: Path | None, offset: int, wait: Wait | None) -> Iterator[_Placed]:
    """Return the blocks of all files, from a place in one of them on."""
    while True:
        files = chunk_files(path)
        if not files and wait is None:
            raise SourceError(f"{path}: the folder has no chunk files (NNNNN.chunk)")
        if file is not None and file not in files:
            raise SourceError(f"{file}: this file was removed while it was read")
        for current in files[files.index(file) if file else 0 :]:
            if current != file:
                file, offset = current, 0
            try:
                for block, end in blocks_in(current, network, offset):
                    offset = end
                    yield block, current, end
            except CutShort:
                # Only the last file may grow: when the list was made all others had a successor, so were finished.
                if wait is None or current != files[-1]:
                    raise
        if wait is None or not wait():
            return


def _find(path: Path, network: Network, after: Sequence[Point]) -> _Placed | None:
    """Return the block of the first point that is on this chain."""
    files = chunk_files(path)
    first_slots: dict[Path, int | None] = {}
    for point in after:
        for file in reversed(files):
            if file not in first_slots:
                first_slots[file] = next((block.slot for block, _ in _whole(file, network, _PEEK_BYTES)), None)
            first = first_slots[file]
            if first is not None and first <= point.slot:
                found = _find_in(file, network, point)
                if found is not None:
                    return found
                if first < point.slot:  # else a boundary block may have it, at the end of the file before
                    break
    return None


def _find_in(file: Path, network: Network, point: Point) -> _Placed | None:
    for block, end in _whole(file, network, WINDOW_BYTES):
        if block.hash == point.hash:
            return block, file, end
        if block.slot is not None and block.slot > point.slot:
            return None
    return None


def _whole(file: Path, network: Network, window: int) -> Iterator[tuple[BlockApplied, int]]:
    """Return the blocks of one file, but for a last one that is half written."""
    with suppress(CutShort):
        yield from blocks_in(file, network, 0, window)


def _catch_up(vouchers: Vouchers, path: Path, network: Network, until: BlockApplied) -> None:
    for block, _, _ in _read(path, network, None, 0, None):
        vouchers.follow(block)
        if block.hash == until.hash:
            return
