"""A node's blk*.dat files: records of magic, length and block, in the order of their arrival.

What a running or crashed node leaves behind is tolerated where nothing can be lost by it: preallocated space at the end
of a file (zeros), remains between records, and at the very end a last block that is only half there. All but the zeros
are reported in `notes`. If a block of the chain is lost in them, the error is that its child has no parent.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from feeds.bitcoin.block import HEADER_BYTES, SMALLEST_BLOCK, decode_block
from feeds.bitcoin.errors import BlockError, ChainError
from feeds.bitcoin.networks import NETWORKS, Network

_PREFIX = 8  # magic and length
_KEY_BYTES = 8
_STRIDE = 1 << 20


class BlkFiles:
    """The records of a folder's blk*.dat, or of one such file; the folder's xor.dat is undone."""

    def __init__(self, path: Path, network: Network) -> None:
        """Find the files. Nothing is read yet but the key."""
        folder = path if path.is_dir() else path.parent
        self.notes: list[str] = []
        self._network = network
        self._files = sorted(folder.glob("blk*.dat")) if path.is_dir() else [path]
        self._key = _read_key(folder / "xor.dat")
        self._file = array("I")
        self._at = array("Q")
        self._length = array("I")

    def headers(self) -> Iterator[bytes]:
        """Yield every record's header, the n-th is record n's. Little more than the headers is read."""
        for number, path in enumerate(self._files):
            with path.open("rb") as file:
                for at, length in self._scan(number, file, path.stat().st_size):
                    self._file.append(number)
                    self._at.append(at)
                    self._length.append(length)
                    yield self._plain(file, at, HEADER_BYTES)
        if not self._at:
            raise ChainError(self._nothing_found())

    def read(self, record: int) -> bytes:
        """Return a whole block."""
        with self._files[self._file[record]].open("rb", buffering=0) as file:
            return self._plain(file, self._at[record], self._length[record])

    def where(self, record: int) -> str:
        """Name a record's place for a message."""
        return self._place(self._file[record], self._at[record])

    def close(self) -> None:
        """Nothing stays open between two reads."""

    def _scan(self, number: int, file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
        """Yield where the blocks of one file begin, and their lengths."""
        at = 0
        while at < size:
            prefix = self._plain(file, at, _PREFIX)
            if prefix[:4] != self._network.magic:
                at = self._skip(number, file, at, size)
                continue
            at += _PREFIX
            length = int.from_bytes(prefix[4:], "little")
            if number == len(self._files) - 1 and self._is_unfinished(file, at, length, size):
                self.notes.append(f"{self._place(number, at)}: the last block is only half there and left out")
                return
            if not SMALLEST_BLOCK <= length <= self._network.max_block_bytes:
                raise BlockError(f"{self._place(number, at)}: a length of {length} bytes, which no block can have")
            if length > size - at:
                raise BlockError(
                    f"{self._place(number, at)}: a block of {length} bytes, but the file has only {size - at} more"
                )
            yield at, length
            at += length

    def _is_unfinished(self, file: BinaryIO, at: int, length: int, size: int) -> bool:
        """Return whether this is the end of the data: cut off there, or zeros instead of the rest."""
        if not _any_set(_raw(file, at - 4, 4)) and _only_zeros(file, at, size):
            return True
        if length > size - at:
            return length <= self._network.max_block_bytes
        end = at + length
        if _any_set(_raw(file, end - _PREFIX, 2 * _PREFIX)) or not _only_zeros(file, end, size):
            return False
        try:
            decode_block(self._plain(file, at, length), 1, self._network)
        except BlockError:
            return True
        return False

    def _skip(self, number: int, file: BinaryIO, begin: int, size: int) -> int:
        """Return where the next record begins, or the file's size."""
        at, only_zeros = begin, True
        while at < size:
            raw = _raw(file, at, _STRIDE)
            found = self._undo_key(raw, at).find(self._network.magic) if _any_set(raw) else -1
            skipped = raw if found < 0 else raw[:found]
            only_zeros = only_zeros and not _any_set(skipped)
            if found >= 0:
                at += found
                break
            at = at + _STRIDE - 3 if len(raw) == _STRIDE else size
        if not only_zeros:
            self.notes.append(f"{self._place(number, begin)}: {at - begin} bytes hold no block and are skipped")
        return at

    def _plain(self, file: BinaryIO, at: int, count: int) -> bytes:
        return self._undo_key(_raw(file, at, count), at)

    def _undo_key(self, raw: bytes, at: int) -> bytes:
        if not self._key:
            return raw
        turn = at % _KEY_BYTES
        stream = (self._key[turn:] + self._key[:turn]) * (len(raw) // _KEY_BYTES + 1)
        mixed = int.from_bytes(raw, "little") ^ int.from_bytes(stream[: len(raw)], "little")
        return mixed.to_bytes(len(raw), "little")

    def _place(self, number: int, at: int) -> str:
        return f"{self._files[number].name}, byte {at}"

    def _nothing_found(self) -> str:
        message = f"{self._files[0]}: no block with the magic of {self._network.name}, {self._network.magic.hex()}"
        with self._files[0].open("rb") as file:
            magic = self._plain(file, 0, 4)
        other = [network.name for network in NETWORKS.values() if network.magic == magic]
        return f"{message}; it begins like a file of {other[0]}" if other else message


def _read_key(path: Path) -> bytes:
    if not path.exists():
        return b""
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ChainError(f"{path}: the key has {len(key)} bytes, expected {_KEY_BYTES}")
    return key if any(key) else b""


def _raw(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    return file.read(count)


def _only_zeros(file: BinaryIO, at: int, size: int) -> bool:
    return not any(_any_set(_raw(file, place, _STRIDE)) for place in range(at, size, _STRIDE))


def _any_set(raw: bytes) -> bool:
    return raw.count(0) < len(raw)
