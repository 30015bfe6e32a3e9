"""The tree of headers, added in any order; the best chain is the branch with the most work."""

from array import array
from collections.abc import Iterable, Iterator

from feeds.bitcoin.block import double_sha256
from feeds.bitcoin.networks import Network
from feeds.bitcoin.proof import check_proof, work_of
from handlers.events import Point

_NONE = -1
_UNKNOWN = -2
_ORPHAN = -1


class Headers:
    """All headers of a source, each with its record; including the root and orphans.

    There can be no cycles: a header names its parent by hash, and its own hash is computed, not taken from the source.
    Held in arrays, as a network has a million of them: about 200 bytes each.
    """

    def __init__(self, network: Network, root: Point | None = None, *, check_work: bool = True) -> None:
        """Start from `root`, the block whose height is known: the network's first, unless the source begins later.

        The source may have the root itself or only what follows it. Without `check_work` proof of work is not checked.
        """
        self._network = network
        self._check_work = check_work
        self.root = root or Point(0, 0, network.genesis)
        self.hashes = [self.root.hash]
        self.parents = array("q", [_NONE])
        self.records = array("q", [_NONE])
        self._bits = array("I", [0])
        self._number = {self.root.hash: 0}
        self._waiting: dict[bytes, list[int]] = {}  # a missing parent -> the headers that name it

    def add(self, header: bytes, record: int) -> None:
        """Add a header. Of two equal blocks the first counts, and the other is ignored.

        Raises:
            BlockError: it claims work that was not done.
        """
        block_hash = double_sha256(header)[::-1]
        bits = int.from_bytes(header[72:76], "little")
        if self._check_work:
            check_proof(block_hash, bits, self._network)
        number = self._number.get(block_hash)
        if number is None:
            self._append(block_hash, header[35:3:-1], bits, record)
        elif self.records[number] == _NONE:
            self.records[number] = record

    def _append(self, block_hash: bytes, parent_hash: bytes, bits: int, record: int) -> None:
        number = len(self.hashes)
        parent = self._number.get(parent_hash, _NONE)
        if parent == _NONE:
            self._waiting.setdefault(parent_hash, []).append(number)
        self._number[block_hash] = number
        self.hashes.append(block_hash)
        self.parents.append(parent)
        self.records.append(record)
        self._bits.append(bits)
        for child in self._waiting.pop(block_hash, ()):
            self.parents[child] = number

    def orphans(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Name record, hash and missing parent of every header whose parent is missing; not their descendants."""
        for parent_hash, children in self._waiting.items():
            for child in children:
                yield self.records[child], self.hashes[child], parent_hash

    def best(self) -> "BestChain":
        """Choose the branch from the root with the most work; of equals the one whose last block was read first."""
        works, heights = self._weigh()
        tip = max(range(len(works)), key=works.__getitem__)
        path = array("q")
        chosen = bytearray(len(works))
        while tip != _NONE:
            path.append(tip)
            chosen[tip] = True
            tip = self.parents[tip]
        path.reverse()
        stale = [
            Point(height, height, block_hash)
            for work, height, block_hash, on_path in zip(works, heights, self.hashes, chosen, strict=True)
            if work >= 0 and not on_path
        ]
        return BestChain(self, path, sorted(stale, key=lambda point: point.height))

    def _weigh(self) -> tuple[list[int], "array[int]"]:
        """Return every header's work and height, counted from the root; what has no way to it weighs less than 0."""
        works = [0, *[_UNKNOWN] * (len(self.hashes) - 1)]
        heights = array("q", [self.root.height]) * len(works)
        for number in range(1, len(works)):
            branch = []
            while works[number] == _UNKNOWN and self.parents[number] != _NONE:
                branch.append(number)
                number = self.parents[number]
            if works[number] == _UNKNOWN:
                works[number] = _ORPHAN
            for child in reversed(branch):
                works[child] = works[number] + work_of(self._bits[child]) if works[number] >= 0 else _ORPHAN
                heights[child] = heights[number] + 1
                number = child
        return works, heights


class BestChain:
    """The blocks from the root to the tip; `stale` are those of other branches, by height."""

    def __init__(self, headers: Headers, path: "array[int]", stale: list[Point]) -> None:
        """Take the path from the root as numbers of headers."""
        self._headers = headers
        self._path = path
        self.stale = stale

    @property
    def tip(self) -> Point:
        """Return the last block; the root itself when nothing follows it."""
        return self._point(len(self._path) - 1)

    def blocks(self, after: Iterable[Point] = (), to_height: int | None = None) -> Iterator[tuple[Point, int]]:
        """Yield each block with its record, in chain order, the root too when the source has it.

        Starts behind the first of the points `after` that is on the chain, by height and hash, and at the first block
        when none of them is.
        """
        for place in range(self._start(after), len(self._path)):
            point = self._point(place)
            if to_height is not None and point.height > to_height:
                return
            record = self._headers.records[self._path[place]]
            if record != _NONE:
                yield point, record

    def _start(self, after: Iterable[Point]) -> int:
        for point in after:
            place = point.height - self._headers.root.height
            if 0 <= place < len(self._path) and self._headers.hashes[self._path[place]] == point.hash:
                return place + 1
        return 0

    def _point(self, place: int) -> Point:
        height = self._headers.root.height + place
        return Point(height, height, self._headers.hashes[self._path[place]])
