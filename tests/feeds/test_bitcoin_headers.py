"""Which of many headers, shuffled in any order, are the chain."""

import hashlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bitcoin_block import GENESIS, hash_of, made_block, made_coinbase

from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.headers import Headers
from feeds.bitcoin.networks import MAINNET, NETWORKS, REGTEST, SIGNET, TESTNET3, TESTNET4
from feeds.bitcoin.proof import check_proof, target_of, work_of
from handlers.events import Point

BITS = (0x207FFFFF, 0x203FFFFF, 0x1F7FFFFF)  # works 2, 4 and 512


def header(parent: bytes, bits: int = BITS[0], note: int = 0) -> bytes:
    """Return a header without the work that it claims."""
    return struct.pack("<I32s32sIII", 1, parent[::-1], bytes(32), note, bits, 0)


def branch(parent: bytes, length: int, bits: int = BITS[0], note: int = 0) -> list[bytes]:
    found = []
    for _ in range(length):
        found.append(header(parent, bits, note))
        parent = hash_of(found[-1])
    return found


def tree(shuffled: list[bytes], root: Point | None = None) -> Headers:
    headers = Headers(REGTEST, root, check_work=False)
    for record, raw in enumerate(shuffled):
        headers.add(raw, record)
    return headers


def test_the_genesis_header_is_optional_and_repeated_ones_are_ignored() -> None:
    chain = branch(hash_of(GENESIS), 2)
    for raws, expected in (([*chain, GENESIS[:80], chain[0]], [(0, 2), (1, 0), (2, 1)]), (chain, [(1, 0), (2, 1)])):
        headers = Headers(MAINNET, check_work=False)
        for record, raw in enumerate(raws):
            headers.add(raw, record)
        assert [(point.height, record) for point, record in headers.best().blocks()] == expected


def test_start_and_end_points() -> None:
    chain, other = branch(REGTEST.genesis, 6), branch(REGTEST.genesis, 3, note=1)
    best = tree(chain + other).best()
    points = [Point(height, height, hash_of(raw)) for height, raw in enumerate(chain, 1)]
    stale = Point(3, 3, hash_of(other[-1]))
    wrong_height = Point(5, 5, points[5].hash)

    def heights(*after: Point, to: int | None = None) -> list[int]:
        return [point.height for point, _ in best.blocks(after, to)]

    assert heights(points[3], points[1]) == [5, 6]
    assert heights(stale, points[1], points[0]) == [3, 4, 5, 6]
    assert heights(stale) == heights(Point(99, 99, b"\x01" * 32)) == heights() == [1, 2, 3, 4, 5, 6]
    assert heights(wrong_height, points[0]) == [2, 3, 4, 5, 6]
    assert heights(Point(0, 0, REGTEST.genesis)) == [1, 2, 3, 4, 5, 6]
    assert heights(points[1], to=4) == [3, 4]
    assert heights(points[5]) == heights(points[3], to=2) == []


@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.integers(1, 25))
def test_the_best_chain_is_the_heaviest_path(data: st.DataObject, size: int) -> None:
    parents = [REGTEST.genesis]
    weight, raws = {REGTEST.genesis: 0}, []
    for note in range(size):
        parent = data.draw(st.sampled_from(parents))
        raw = header(parent, data.draw(st.sampled_from(BITS)), note)
        raws.append(raw)
        parents.append(hash_of(raw))
        weight[hash_of(raw)] = weight[parent] + (2, 4, 512)[BITS.index(int.from_bytes(raw[72:76], "little"))]
    shuffled = data.draw(st.permutations(raws))
    best = tree(shuffled).best()
    path = [point.hash for point, _ in best.blocks()]
    heaviest = max(map(weight.__getitem__, parents))
    assert path[-1] == next(hash_of(raw) for raw in shuffled if weight[hash_of(raw)] == heaviest)
    by_hash = {hash_of(raw): raw for raw in raws}
    assert all(by_hash[child][35:3:-1] == parent for parent, child in pairwise([REGTEST.genesis, *path]))
    assert {point.hash for point in best.stale} == set(by_hash) - set(path)


def test_long_branches_need_no_stack() -> None:
    chain = branch(REGTEST.genesis, 20_000)
    assert tree(chain[::-1]).best().tip.height == 20_000


def test_headers_without_the_claimed_work_are_refused() -> None:
    honest = made_block([made_coinbase()], parent=REGTEST.genesis)
    headers = Headers(REGTEST)
    headers.add(honest[:80], 0)
    with pytest.raises(BlockError, match="does not meet its own target 1d00ffff"):
        headers.add(header(REGTEST.genesis, 0x1D00FFFF), 1)
    with pytest.raises(BlockError, match="mainnet does not allow"):
        Headers(MAINNET).add(honest[:80], 0)
    assert headers.best().tip.hash == hash_of(honest)


TARGETS = [(0x1D00FFFF, 0xFFFF << 208), (0x207FFFFF, 0x7FFFFF << 232), (0x02008000, 0x80), (0x05009234, 0x92340000)]
TARGETS += [(0x03123456, 0x123456), *((bits, 0) for bits in (0x01003456, 0x04923456, 0xFF123456, 0))]


@pytest.mark.parametrize(("bits", "target"), TARGETS)
def test_target(bits: int, target: int) -> None:
    assert target_of(bits) == target
    if not target:
        assert work_of(bits) == 0
        with pytest.raises(BlockError, match="does not allow"):
            check_proof(bytes(32), bits, REGTEST)


def test_work() -> None:
    assert work_of(0x1D00FFFF) == 0x1_0001_0001
    assert [work_of(bits) for bits in BITS] == [2, 4, 512]


MERKLE = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b"
FIRST = {
    MAINNET: (MERKLE, 1231006505, 0x1D00FFFF, 2083236893),
    TESTNET3: (MERKLE, 1296688602, 0x1D00FFFF, 414098458),
    TESTNET4: ("7aa0a7ae1e223414cb807e40cd57e667b718e42aaf9306db9102fe28912b7b4e", 1714777860, 0x1D00FFFF, 393743547),
    SIGNET: (MERKLE, 1598918400, 0x1E0377AE, 52613770),
    REGTEST: (MERKLE, 1296688602, 0x207FFFFF, 2),
}


def test_networks() -> None:
    assert list(FIRST) == list(NETWORKS.values())
    for network, (merkle, *rest) in FIRST.items():
        raw = struct.pack("<I32s32sIII", 1, bytes(32), bytes.fromhex(merkle)[::-1], *rest)
        Headers(network).add(raw, 0)
        assert hashlib.sha256(hashlib.sha256(raw).digest()).digest()[::-1] == network.genesis
    magics = [network.magic.hex() for network in FIRST]
    assert magics == ["f9beb4d9", "0b110907", "1c163f28", "0a03cf40", "fabfb5da"]
