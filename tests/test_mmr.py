"""MMRs by the tables of Grin: positions, families, peaks, roots, proofs; and what a proof can't be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import mmr
from storage.history.layout import Bytes
from storage.history.mmr_arrays import (
    described,
    grow,
    hashes,
    in_bytes,
    last_leaf,
    leaf_positions,
    node_positions,
    rehash,
)

ELEMENTS = [pack(">4I", 0, 0, 0, n) for n in range(1, 9)] + [pack(">4I", 1, 0, 0, 0)]
ROOTS = {  # by the number of elements
    1: "7fbf243537e8d582cf37f4da141f3b28b240ff4b4dc41b75bdc4306ff048447b",
    2: "f3ba12fb3e66f9ea61d6a1cbe19a9d285c4a45818d2a4f56f149a3f5a612b91b",
    3: "f5b75ce6379b05d1a79176c499ed6f18997253bd15dcfb380ec70e2a567c554d",
    4: "e543698d90b6a622881e0e94e989b804e18af2681b73cb90694d7f01423263b6",
    5: "158a155acba0b5aecac2cb3acd7bfa15ef2faa0002830a57914628207cf28ad3",
    6: "5ff23d68408be201b18cfa342a6a3385eb47f12fbde398aae064e707b4047373",
    7: "7dac477d52c4065ce62a7e09278ad422c85d44c79ffcb4114bda6724faed69bf",
    8: "0f32f48c801a9cadfbe9665998e56d0b412d362ad1be28074b594161d3f4ba4c",
    9: "d3ba393e3053051ebce4710c46d50dc54c0551b24a0d5be114b994bd48d4052b",
}
PEAKS = {
    **{0: [], 1: [0], 2: [], 3: [2], 4: [2, 3], 5: [], 6: [], 7: [6], 8: [6, 7], 9: [], 10: [6, 9], 11: [6, 9, 10]},
    **{22: [14, 21], 32: [30, 31], 35: [30, 33, 34], 42: [30, 37, 40, 41]},
    1048555: [
        *(524286, 786429, 917500, 983035, 1015802, 1032185, 1040376, 1044471, 1046518, 1047541),
        *(1048052, 1048307, 1048434, 1048497, 1048528, 1048543, 1048550, 1048553, 1048554),
    ],
}


def hashed(first: int, data: Iterable[bytes]) -> Bytes:
    return hashes(mmr.U64.pack(mmr.size_of(number)) + each for number, each in enumerate(data, first))


def rows(nodes: Bytes) -> list[bytes]:
    return [row.tobytes() for row in nodes]


class Range:
    def __init__(self, data: Sequence[bytes] = ()) -> None:
        self.data: list[bytes] = []
        self.nodes: list[bytes] = []
        self.add(data)

    @property
    def size(self) -> int:
        return len(self.nodes)

    def add(self, data: Sequence[bytes]) -> None:
        count, tops = len(self.data), self.read(mmr.peaks(self.size))
        heights = [height for height in reversed(range(count.bit_length())) if count >> height & 1]
        grown, after = grow(count, dict(zip(heights, tops, strict=True)), hashed(count, data))
        self.nodes += rows(grown)
        self.data += data
        assert self.size == mmr.size_of(len(self.data))
        assert [after[height] for height in sorted(after, reverse=True)] == self.read(mmr.peaks(self.size))

    def read(self, positions: list[int]) -> list[bytes]:
        return [self.nodes[position] for position in positions]

    def root(self) -> bytes:
        return mmr.root(self.size, self.read)

    def prove(self, leaf: int) -> list[bytes]:
        return mmr.prove(self.size, leaf, self.read)


def test_heights_and_leaves_in_post_order() -> None:
    assert [mmr.peak_map(n)[1] for n in range(15)] == [0, 0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1, 2, 3]
    assert [mmr.peak_map(n) for n in range(8)] == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1), (3, 2), (4, 0)]
    leaves = [0, 1, 3, 4, 7, 8, 10, 11, 15, 16, 18, 19, 22, 23, 25, 26, 31]
    assert [mmr.size_of(n) for n in range(17)] == leaves == node_positions(0, np.arange(17)).tolist()
    assert node_positions(1, np.arange(4)).tolist() == [2, 5, 9, 12]
    assert [node_positions(height, np.arange(1)).tolist() for height in range(5)] == [[0], [2], [6], [14], [30]]
    assert [n for n in range(40) if mmr.peaks(n)] == [mmr.size_of(n) for n in range(1, 40) if mmr.size_of(n) < 40]


def test_families() -> None:
    expected = [(2, 1), (2, 0), (6, 5), (5, 4), (5, 3), (6, 2), (14, 13)]
    assert [mmr.family(n) for n in range(7)] == expected
    assert mmr.family(999) == (1000, 996)


@pytest.mark.parametrize("size", PEAKS)
def test_peaks(size: int) -> None:
    assert mmr.peaks(size) == PEAKS[size]
    if PEAKS[size]:
        assert mmr.size_of(mmr.leaf_count(size)) == size
    elif size:
        with pytest.raises(ValueError, match=f"{size} is not the size"):
            mmr.leaf_count(size)


@given(st.integers(0, 70), st.randoms(use_true_random=False))
def test_leaves_in_parts_make_the_nodes_of_all_at_once(leaves: int, random: Random) -> None:
    data, parts = [random.randbytes(4) for _ in range(leaves)], Range()
    while parts.data != data:
        parts.add(data[len(parts.data) :][: random.choice((1, 2, 3, 20))])
    assert parts.nodes == Range(data).nodes


def test_the_root_of_nothing() -> None:
    assert Range().root() == bytes(32)


@pytest.mark.parametrize("leaves", ROOTS)
def test_roots(leaves: int) -> None:
    at_once, one_by_one = Range(ELEMENTS[:leaves]), Range()
    for element in ELEMENTS[:leaves]:
        one_by_one.add([element])
    assert at_once.root().hex() == ROOTS[leaves]
    assert one_by_one.nodes == at_once.nodes and at_once.size == mmr.size_of(leaves)


def test_proofs_of_seven_leaves() -> None:
    seven = Range(ELEMENTS[:7])
    n, right = seven.nodes, mmr.node_hash(11, seven.nodes[9] + seven.nodes[10])
    assert seven.prove(0) == [n[1], n[5], right]
    assert seven.prove(2) == [n[4], n[2], right]
    assert seven.prove(4) == [n[8], n[10], n[6]]
    assert seven.prove(6) == [n[9], n[6]]


@given(st.integers(1, 70), st.randoms(use_true_random=False))
def test_a_proof_leads_to_its_root_and_nothing_else_does(leaves: int, random: Random) -> None:
    whole = Range([random.randbytes(random.randrange(1, 9)) for _ in range(leaves)])
    root, leaf = whole.root(), random.randrange(leaves)
    data, path, size = whole.data[leaf], whole.prove(leaf), whole.size
    assert mmr.climb(size, leaf, data, path) == root
    assert mmr.climb(size, leaf, data + b"\0", path) != root
    for at, each in enumerate(path):
        changed = bytes((each[0] ^ 1,)) + each[1:]
        assert mmr.climb(size, leaf, data, [*path[:at], changed, *path[at + 1 :]]) != root
    for wrong in ([*path, bytes(32)], path[:-1]):
        if len(wrong) != len(path):
            with pytest.raises(ValueError, match="the path has"):
                mmr.climb(size, leaf, data, wrong)
    for other in {*range(leaves), *range(leaf)} - {leaf}:
        assert _or_none(size, other, data, path) != root
    for bad_size, bad_leaf in ((size, leaves), (size, -1), (size + 2, leaf), (-1, 0), (0, 0)):
        if bad_leaf in (leaves, -1) or mmr.peaks(bad_size) == []:
            with pytest.raises(ValueError, match=r"there is no leaf|is not the size"):
                mmr.climb(bad_size, bad_leaf, data, path)


def _or_none(size: int, leaf: int, data: bytes, path: list[bytes]) -> bytes | None:
    try:
        return mmr.climb(size, leaf, data, path)
    except ValueError:
        return None


def test_positions_of_many_are_those_of_each() -> None:
    numbers = np.arange(300)
    assert leaf_positions(numbers).tolist() == [mmr.size_of(n) for n in range(300)]
    assert [raw.tobytes() for raw in in_bytes(numbers)] == [mmr.U64.pack(n) for n in range(300)]
    positions, last, heights = described(5, 290)
    expected = [mmr.peak_map(position) for position in range(5, 295)]
    assert list(zip(last.tolist(), heights.tolist(), strict=True)) == expected
    assert [last_leaf(position) for position in positions.tolist()] == [leaf for leaf, _ in expected]


@given(st.integers(0, 70), st.integers(0, 9), st.randoms(use_true_random=False))
def test_changed_chunks_and_their_ancestors_are_hashed_again(chunks: int, more: int, random: Random) -> None:
    data = [random.randbytes(128) for _ in range(chunks + more)]
    old, new = Range(data[:chunks]), list(data)
    for number in random.sample(range(chunks), random.randrange(chunks + 1)):
        new[number] = random.randbytes(128)
    changed = np.array([n for n in range(chunks + more) if n >= chunks or new[n] != data[n]], np.int64)
    nodes = np.zeros((mmr.size_of(chunks + more), mmr.HASH_BYTES), np.uint8)
    nodes[: old.size] = np.frombuffer(b"".join(old.nodes), np.uint8).reshape(-1, mmr.HASH_BYTES)
    raw = np.frombuffer(b"".join(new[n] for n in changed.tolist()), np.uint8).reshape(-1, 128)
    written, whole = rehash(nodes, chunks + more, changed, raw), Range(new)
    assert rows(nodes) == whole.nodes
    assert sorted(written.tolist()) == [n for n in range(whole.size) if [whole.nodes[n]] != old.nodes[n : n + 1]]
