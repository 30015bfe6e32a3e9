"""Raw blocks as hex, one a line, in any order; plain or .xz."""

import lzma
from array import array
from binascii import unhexlify
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import SpooledTemporaryFile

from feeds.bitcoin.block import HEADER_BYTES, SMALLEST_BLOCK
from feeds.bitcoin.errors import BlockError, ChainError
from feeds.bitcoin.networks import Network

_IN_MEMORY = 64 << 20


class HexFiles:
    """The lines of one file, or of all *.hex and *.hex.xz of a folder in the order of their names.

    The first pass writes the blocks in binary to a temporary file, since a compressed file cannot be read in another
    order than its own; up to 64 MiB of them stay in memory.
    """

    def __init__(self, path: Path, network: Network) -> None:
        """Find the files. Nothing is read yet."""
        self.notes: list[str] = []
        self._network = network
        self._files = hex_files(path) if path.is_dir() else [path]
        self._spool = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 -- `close` closes it
        self._ends = array("Q", [0])
        self._first_record = array("Q")
        self._lines = array("Q")

    def headers(self) -> Iterator[bytes]:
        """Yield every block's header, the n-th is record n's; empty lines do not count."""
        for path in self._files:
            self._first_record.append(len(self._lines))
            for number, line in self._lines_of(path):
                if line := line.strip():
                    raw = _decoded(line, f"{path.name}, line {number}")
                    self._spool.write(raw)
                    self._ends.append(self._ends[-1] + len(raw))
                    self._lines.append(number)
                    yield raw[:HEADER_BYTES]
        if not self._lines:
            raise ChainError(f"{self._files[0]}: the files have no block")

    def read(self, record: int) -> bytes:
        """Return a whole block."""
        begin, end = self._ends[record : record + 2]
        self._spool.seek(begin)
        return self._spool.read(end - begin)

    def where(self, record: int) -> str:
        """Name a record's place for a message."""
        path = self._files[bisect_right(self._first_record, record) - 1]
        return f"{path.name}, line {self._lines[record]}"

    def close(self) -> None:
        """Remove the temporary file."""
        self._spool.close()

    def _lines_of(self, path: Path) -> Iterator[tuple[int, bytes]]:
        longest = 2 * self._network.max_block_bytes + 2
        try:
            with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
                for number in count(1):
                    line = file.readline(longest + 1)
                    if not line:
                        return
                    if len(line) > longest:
                        raise BlockError(f"{path.name}, line {number}: it is longer than any block")
                    yield number, line
        except (lzma.LZMAError, EOFError) as error:
            raise ChainError(f"{path}: {error}") from None


def hex_files(folder: Path) -> list[Path]:
    """Return a folder's files of hex in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((".hex", ".hex.xz")))


def _decoded(line: bytes, where: str) -> bytes:
    try:
        raw = unhexlify(line)
    except ValueError as error:
        raise BlockError(f"{where}: {error}") from None
    if len(raw) < SMALLEST_BLOCK:
        raise BlockError(f"{where}: {len(raw)} bytes are not a block")
    return raw
