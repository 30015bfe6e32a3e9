"""Files of complete blocks, in chain order: the source of `feed bitcoin-blocks`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct

from feeds.bitcoin.blkfiles import BlkFiles
from feeds.bitcoin.block import decode_block
from feeds.bitcoin.errors import BlockError, ChainError
from feeds.bitcoin.headers import Headers
from feeds.bitcoin.hexfiles import HexFiles, hex_files
from feeds.bitcoin.networks import Network
from handlers.events import BlockApplied, Point


class BlockFiles(Protocol):
    """Blocks in the order in which the files have them, read twice: the headers of all, then each on request."""

    notes: list[str]

    def headers(self) -> Iterator[bytes]:
        """Yield every record's header, the n-th is record n's."""

    def read(self, record: int) -> bytes:
        """Return a whole block."""

    def where(self, record: int) -> str:
        """Name a record's place for a message."""

    def close(self) -> None:
        """Release what reading held."""


class Options(Struct, frozen=True, kw_only=True):
    """How a source is checked; the defaults suit the files of a node.

    `root` is a block of known height, in the files or just before them, for a source that does not go back to the
    network's first block. A block whose parent is missing is an error, as it may be a hole in the chain; with
    `skip_orphans` it is noted and left out with all that follows it: a node that is still catching up stores blocks
    before their parents. Without `check_work` proof of work is not checked. `check_merkle` and
    `mark_unspendable` are those of `decode_block`.
    """

    root: Point | None = None
    skip_orphans: bool = False
    check_work: bool = True
    check_merkle: bool = True
    mark_unspendable: bool = True


class Chain:
    """The best chain of a folder or file: a node's blk*.dat, or raw hex, one block a line (.hex, .hex.xz).

    Opening it reads all headers; then one block at a time is read, decoded and forgotten.
    """

    def __init__(self, path: Path, network: Network, options: Options = Options()) -> None:  # noqa: B008 -- frozen
        """Index the files.

        Raises:
            SourceError: they make no chain of this network.
            OSError: they cannot be read.
        """
        self._network = network
        self._options = options
        self._files = _open_files(path, network)
        try:
            headers = Headers(network, options.root, check_work=options.check_work)
            self._take_in(headers)
            self._best = headers.best()
            self._judge_orphans(headers)
        except BaseException:
            self._files.close()
            raise

    @property
    def tip(self) -> Point:
        """Return the last block."""
        return self._best.tip

    @property
    def stale(self) -> list[Point]:
        """Return the blocks of other branches, lowest first."""
        return self._best.stale

    @property
    def notes(self) -> list[str]:
        """Return what in the files was passed over, one line each."""
        return self._files.notes

    def blocks(self, after: Iterable[Point] = (), to_height: int | None = None) -> Iterator[BlockApplied]:
        """Yield the blocks in chain order, up to and with `to_height`.

        `after` are points, newest first: starts behind the first of them that is on this chain, and when none is at
        the first block.

        Raises:
            SourceError: a block is invalid; what was yielded before remains valid.
        """
        for point, record in self._best.blocks(after, to_height):
            block = self._decode(record, point.height)
            if block.hash != point.hash:
                raise ChainError(f"{self._files.where(record)}: block {point.height} was changed while it was read")
            yield block

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def __enter__(self) -> Self:
        """Return the chain; leaving closes it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _take_in(self, headers: Headers) -> None:
        for record, header in enumerate(self._files.headers()):
            try:
                headers.add(header, record)
            except BlockError as error:
                raise BlockError(f"{self._files.where(record)}: {error}") from None

    def _judge_orphans(self, headers: Headers) -> None:
        orphans = list(headers.orphans())
        if not orphans:
            return
        record, block_hash, parent = min(orphans)
        message = f"{self._files.where(record)}: block {block_hash.hex()} "
        if any(parent) or headers.root.hash != self._network.genesis:
            message += f"follows {parent.hex()}, which is missing"
        else:
            message += f"is the first of another network than {self._network.name}"
        if len(orphans) > 1:
            message += f"; {len(orphans) - 1} more have no parent either"
        nothing_left = next(self._best.blocks(), None) is None
        if nothing_left or not self._options.skip_orphans:
            raise ChainError(message)
        self.notes.append(message)

    def _decode(self, record: int, height: int) -> BlockApplied:
        raw = self._files.read(record)
        check, mark = self._options.check_merkle, self._options.mark_unspendable
        try:
            return decode_block(raw, height, self._network, check_merkle=check, mark_unspendable=mark)
        except BlockError as error:
            raise BlockError(f"{self._files.where(record)}, block {height}: {error}") from None


def _open_files(path: Path, network: Network) -> BlockFiles:
    if not path.is_dir():
        return BlkFiles(path, network) if path.suffix == ".dat" else HexFiles(path, network)
    if next(path.glob("blk*.dat"), None):
        return BlkFiles(path, network)
    if hex_files(path):
        return HexFiles(path, network)
    raise ChainError(f"{path}: the folder has no blk*.dat, *.hex or *.hex.xz")
