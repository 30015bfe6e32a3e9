"""blk*.dat written here in every state that a node leaves them in, read back as the chain that they hold."""

import random
from pathlib import Path

import pytest
from bitcoin_chains import read_chain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_data import lines, names, need
from test_bitcoin_block import hash_of, made_block, made_coinbase, made_output

from feeds.bitcoin.errors import BlockError, ChainError, SourceError
from feeds.bitcoin.networks import MAINNET, REGTEST, TESTNET3, Network
from feeds.bitcoin.source import Chain, Options
from handlers.events import Point

KEY = bytes.fromhex("a1b2c3d4e5f60718")


def record(raw: bytes, network: Network = REGTEST) -> bytes:
    return network.magic + len(raw).to_bytes(4, "little") + raw


def mix(data: bytes, key: bytes) -> bytes:
    return bytes(byte ^ key[at % len(key)] for at, byte in enumerate(data))


def write(folder: Path, number: int, data: bytes, *, key: bytes = b"", reserved: int = 0) -> Path:
    """Write a file as a node does: the key applies to records, and reserved space is plain zeros."""
    path = folder / f"blk{number:05}.dat"
    path.write_bytes((mix(data, key) if key else data) + bytes(reserved))
    if key:
        (folder / "xor.dat").write_bytes(key)
    return path


def made_chain(length: int, parent: bytes = REGTEST.genesis, note: bytes = b"") -> list[bytes]:
    chain = []
    for height in range(length):
        outputs = [made_output(50, bytes([height]) * (5 * height + 1))]
        chain.append(made_block([made_coinbase(note + bytes([height]), outputs)], parent=parent))
        parent = hash_of(chain[-1])
    return chain


CHAIN = made_chain(12)
ZERO_TAIL = made_block([made_coinbase(b"t", [made_output(1, bytes(40))])], parent=hash_of(CHAIN[-1]))


def hashes(folder: Path, network: Network = REGTEST, options: Options = Options()) -> list[bytes]:  # noqa: B008
    return [block.hash for block in read_chain(folder, network, options=options)]


def expect(*chain: bytes) -> list[bytes]:
    return [hash_of(raw) for raw in chain]


@pytest.mark.parametrize("key", [b"", KEY, bytes(8)], ids=["plain", "xor", "zero key"])
def test_a_shuffled_chain_with_a_stale_branch(tmp_path: Path, key: bytes) -> None:
    raws = [bytes.fromhex(line) for line in lines(need(names("bitcoin/mainnet-0-*.hex.xz")[0]))]
    stale = [bytes.fromhex(line) for line in lines(need(names("bitcoin/reorg/branch-alt-*.hex.xz")[0]))][1:]
    shuffled = random.Random(5).sample(raws + stale, len(raws) + len(stale))
    for number in range(4):
        records = b"".join(record(raw, MAINNET) for raw in shuffled[number::4])
        write(tmp_path, number, records, key=key, reserved=70_000 if number % 2 else 3)
    with Chain(tmp_path, MAINNET) as chain:
        found = list(chain.blocks())
        assert chain.stale == [Point(height, height, hash_of(raw)) for height, raw in enumerate(stale, 1)]
        assert chain.notes == []
    assert [(block.height, block.hash) for block in found] == list(enumerate(expect(*raws)))
    assert list(read_chain(tmp_path, MAINNET, [found[170].point], 180)) == found[171:181]


def test_repeated_blocks_and_reserved_space_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN + CHAIN[:5])))
    assert hashes(tmp_path) == expect(*CHAIN)
    write(tmp_path, 0, b"".join(map(record, [*CHAIN, ZERO_TAIL])), reserved=500)
    assert hashes(tmp_path) == expect(*CHAIN, ZERO_TAIL)


@pytest.mark.parametrize("key", [b"", KEY], ids=["plain", "xor"])
@pytest.mark.parametrize("kept", [1, 6, 8, 88, -1])
def test_an_unfinished_last_block_is_reported_and_skipped(tmp_path: Path, kept: int, key: bytes) -> None:
    whole, last = b"".join(map(record, CHAIN[:-1])), record(CHAIN[-1])
    write(tmp_path, 0, whole + last[:kept], key=key)
    with Chain(tmp_path, REGTEST) as chain:
        assert [block.hash for block in chain.blocks()] == expect(*CHAIN[:-1])
        assert len(chain.notes) == 1
        assert chain.notes[0].startswith("blk00000.dat, byte ")


@pytest.mark.parametrize("key", [b"", KEY], ids=["plain", "xor"])
@pytest.mark.parametrize("kept", [4, 8, 88, -60])
def test_an_unfinished_last_block_before_reserved_space(tmp_path: Path, kept: int, key: bytes) -> None:
    whole, last = b"".join(map(record, CHAIN)), record(ZERO_TAIL)
    reserved = 2_000_000 if kept == 8 else len(last) + 50
    write(tmp_path, 0, whole + last[:kept], key=key, reserved=reserved)
    assert hashes(tmp_path) == expect(*CHAIN)
    with Chain(tmp_path, REGTEST) as chain:
        assert chain.tip.height == 12
        assert len(chain.notes) == 1


def test_an_unfinished_block_before_the_last_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN[:5]))[:-1])
    write(tmp_path, 1, b"".join(map(record, CHAIN[5:])))
    with pytest.raises(BlockError, match=r"blk00000.dat, byte \d+: a block of \d+ bytes, but the file has only"):
        hashes(tmp_path)


GAPS = [*(random.Random(size).randbytes(size) for size in (1, 7, 5000, (1 << 20) - 1, (1 << 20) + 2))]
GAPS += [b"remains" + bytes((1 << 20) + 5), bytes((1 << 20) + 5)]


@pytest.mark.parametrize("key", [b"", KEY], ids=["plain", "xor"])
@pytest.mark.parametrize("gap", GAPS, ids=range(len(GAPS)))
def test_bytes_between_records_are_skipped_and_reported_unless_zero(tmp_path: Path, gap: bytes, key: bytes) -> None:
    first = b"".join(map(record, CHAIN[:5]))
    write(tmp_path, 0, first + gap + b"".join(map(record, CHAIN[5:])), key=key)
    with Chain(tmp_path, REGTEST) as chain:
        assert [block.hash for block in chain.blocks()] == expect(*CHAIN)
        note = f"blk00000.dat, byte {len(first)}: {len(gap)} bytes hold no block and are skipped"
        assert chain.notes == ([note] if any(gap) or key else [])


def test_a_missing_block_is_refused_or_skipped(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN[:4] + CHAIN[5:])))
    place = 8 + sum(len(record(raw)) for raw in CHAIN[:4])
    message = f"blk00000.dat, byte {place}: block {hash_of(CHAIN[5]).hex()} follows {hash_of(CHAIN[4]).hex()}"
    with pytest.raises(ChainError, match=f"{message}, which is missing$"):
        hashes(tmp_path)
    with Chain(tmp_path, REGTEST, Options(skip_orphans=True)) as chain:
        assert chain.tip == Point(4, 4, hash_of(CHAIN[3]))
        assert chain.notes == [f"{message}, which is missing"]


def test_a_folder_without_a_first_block_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, [*CHAIN[3:], made_block([made_coinbase()])])))
    with pytest.raises(ChainError, match="is missing; 1 more have no parent either"):
        hashes(tmp_path, options=Options(skip_orphans=True))


def test_files_of_another_network_or_key_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, b"", reserved=1000)
    with pytest.raises(ChainError, match=r"blk00000.dat: no block with the magic of regtest, fabfb5da$"):
        hashes(tmp_path)
    path = write(tmp_path, 0, record(CHAIN[0], TESTNET3), key=KEY)
    with pytest.raises(
        ChainError, match="no block with the magic of regtest, fabfb5da; it begins like a file of testnet3"
    ):
        hashes(tmp_path)
    write(tmp_path, 0, record(made_block([made_coinbase()], parent=bytes(32))))
    (tmp_path / "xor.dat").write_bytes(b"seven b")
    with pytest.raises(ChainError, match="the key has 7 bytes, expected 8"):
        hashes(tmp_path)
    (tmp_path / "xor.dat").unlink()
    with pytest.raises(ChainError, match=f"{path.name}, byte 8: block .* is the first of another network than regtest"):
        hashes(tmp_path)


def test_a_damaged_last_block_is_refused(tmp_path: Path) -> None:
    broken = CHAIN[-1][:-30] + b"\x99" + CHAIN[-1][-29:]
    write(tmp_path, 0, b"".join(map(record, [*CHAIN[:-1], broken])), reserved=500)
    with pytest.raises(BlockError, match="block 12: the Merkle root"):
        hashes(tmp_path)


@pytest.mark.parametrize("length", [0, 100, 4_000_001, 0xFFFFFFFF])
def test_impossible_lengths_are_refused(tmp_path: Path, length: int) -> None:
    write(tmp_path, 0, record(CHAIN[0]) + REGTEST.magic + length.to_bytes(4, "little") + CHAIN[1] + record(CHAIN[2]))
    place = f"blk00000.dat, byte {len(CHAIN[0]) + 16}"
    with pytest.raises(BlockError, match=f"{place}: a length of {length} bytes, which no block can have"):
        hashes(tmp_path)


def test_blocks_before_a_damaged_one_are_read(tmp_path: Path) -> None:
    broken = CHAIN[6][:-30] + b"\x99" + CHAIN[6][-29:]
    write(tmp_path, 0, b"".join(map(record, [*CHAIN[:6], broken, *CHAIN[7:]])))
    blocks = read_chain(tmp_path, REGTEST)
    assert [next(blocks).height for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(BlockError, match=r"blk00000.dat, byte \d+, block 7: the Merkle root"):
        next(blocks)
    assert len(hashes(tmp_path, options=Options(check_merkle=False))) == 12


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN[:2])))
    with Chain(tmp_path, REGTEST) as chain:
        other = made_block([made_coinbase(b"\0", [made_output(50, b"\x09")])])
        assert len(other) == len(CHAIN[0])
        write(tmp_path, 0, record(other) + record(CHAIN[1]))
        with pytest.raises(ChainError, match="block 1 was changed"):
            list(chain.blocks())


@settings(max_examples=200, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), xor=st.booleans())
def test_damaged_files_give_a_prefix_of_the_chain(tmp_path: Path, data: st.DataObject, xor: bool) -> None:
    raw = bytearray(b"".join(map(record, CHAIN)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 200))] = data.draw(st.binary(max_size=60))
    (tmp_path / "xor.dat").unlink(missing_ok=True)
    cut = data.draw(st.integers(0, len(raw)))
    write(tmp_path, 0, bytes(raw[:cut]), key=KEY if xor else b"")
    write(tmp_path, 1, bytes(raw[cut:]), key=KEY if xor else b"")
    found = []
    try:
        for block in read_chain(tmp_path, REGTEST, options=Options(skip_orphans=True)):
            found.append(block.hash)  # noqa: PERF401 -- what came before an error counts
    except SourceError as error:
        assert "\n" not in str(error)
    assert found == expect(*CHAIN)[: len(found)]
