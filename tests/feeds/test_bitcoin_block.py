"""Decoding one block: what an event says of it, and every way in which bytes are not a block."""

import hashlib
import struct
from itertools import count

import pytest
from msgspec.structs import replace

from feeds.bitcoin.block import decode_block
from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.networks import MAINNET, REGTEST
from handlers.events import Output

EASY = 0x207FFFFF
GENESIS = bytes.fromhex(
    "01000000" + "00" * 32 + "3ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c"
    "0101000000010000000000000000000000000000000000000000000000000000000000000000ffffffff4d04ffff001d0104455468652054"
    "696d65732030332f4a616e2f32303039204368616e63656c6c6f72206f6e206272696e6b206f66207365636f6e64206261696c6f757420666f"
    "722062616e6b73ffffffff0100f2052a01000000434104678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649f6"
    "bc3f4cef38c4f35504e51ec112de5c384df7ba0b8d578a4c702b6bf11d5fac00000000"
)


def twice(data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def compact(number: int) -> bytes:
    if number < 0xFD:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfd" + number.to_bytes(2, "little")
    return b"\xfe" + number.to_bytes(4, "little") if number < 1 << 32 else b"\xff" + number.to_bytes(8, "little")


def made_input(txid: bytes = bytes(range(32)), index: int = 0, script: bytes = b"") -> bytes:
    """Return an input; its txid is given in display order."""
    return txid[::-1] + struct.pack("<I", index) + compact(len(script)) + script + b"\xff\xff\xff\xff"


def made_output(value: int = 1, script: bytes = b"\x51") -> bytes:
    return struct.pack("<Q", value) + compact(len(script)) + script


def made_tx(inputs: list[bytes], outputs: list[bytes], witness: bytes | None = None) -> bytes:
    body = compact(len(inputs)) + b"".join(inputs) + compact(len(outputs)) + b"".join(outputs)
    marker = b"" if witness is None else b"\x00\x01"
    return b"\x02\0\0\0" + marker + body + (witness or b"") + b"\0\0\0\0"


def made_coinbase(note: bytes = b"", outputs: list[bytes] | None = None) -> bytes:
    return made_tx([made_input(bytes(32), 0xFFFFFFFF, b"\x03" + note)], outputs or [made_output(50)])


def made_root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    leaves = leaves + leaves[-1:] * (len(leaves) % 2)
    return made_root([twice(leaves[i] + leaves[i + 1]) for i in range(0, len(leaves), 2)])


def made_block(
    txs: list[bytes], *, parent: bytes = b"\x11" * 32, time: int = 7, root: bytes | None = None, bits: int = EASY
) -> bytes:
    """Return a block that meets its target; `parent` is in display order, `root` for transactions with witness."""
    root = made_root([twice(tx) for tx in txs]) if root is None else root
    start = struct.pack("<I32s32sII", 0x20000000, parent[::-1], root, time, bits)
    target = (bits & 0x7FFFFF) << 8 * ((bits >> 24) - 3)
    for nonce in count():
        header = start + struct.pack("<I", nonce)
        if int.from_bytes(twice(header), "little") <= target:
            return header + compact(len(txs)) + b"".join(txs)
    raise AssertionError


def hash_of(raw: bytes) -> bytes:
    """Return the hash in display order."""
    return twice(raw[:80])[::-1]


PLAIN = made_tx([made_input(script=b"\x01" * 300), made_input(b"\xab" * 32, 258)], [made_output(7, b"\x76" * 25)] * 3)
WITNESS = b"\x02\x03abc\xfd\x00\x01" + b"w" * 256 + b"\x00"  # two items for the first input, none for the second
SEGWIT = made_tx([made_input(), made_input(index=1)], [made_output(9, b"\x00\x14" + b"s" * 20)], WITNESS)
SEGWIT_HASHED = made_tx([made_input(), made_input(index=1)], [made_output(9, b"\x00\x14" + b"s" * 20)])
MIXED_ROOT = made_root([twice(tx) for tx in (made_coinbase(), PLAIN, SEGWIT_HASHED)])
MIXED = made_block([made_coinbase(), PLAIN, SEGWIT], root=MIXED_ROOT)


def test_the_first_coinbase_is_unspendable_by_default() -> None:
    own_rule = replace(MAINNET, genesis_spendable=True)
    blocks = [decode_block(GENESIS, 0), decode_block(GENESIS, 0, mark_unspendable=False)]
    blocks += [decode_block(GENESIS, 0, own_rule), decode_block(GENESIS, 1)]
    assert [block.txs[0].outputs[0].spendable for block in blocks] == [False, True, True, True]
    assert (blocks[0].size, blocks[0].header, blocks[0].prev_hash) == (len(GENESIS), GENESIS[:80], None)


def test_plain_and_segwit_transactions() -> None:
    block = decode_block(MIXED, 5)
    _, plain, segwit = block.txs
    assert block.prev_hash == b"\x11" * 32
    assert [tx.coinbase for tx in block.txs] == [True, False, False]
    assert plain.inputs == [(bytes(range(32)), 0), (b"\xab" * 32, 258)]
    assert plain.outputs == [Output(b"\x76" * 25, 7)] * 3
    assert segwit.txid == twice(SEGWIT_HASHED)[::-1]
    assert segwit.inputs == [(bytes(range(32)), 0), (bytes(range(32)), 1)]
    assert [tx.size for tx in block.txs] == [len(made_coinbase()), len(PLAIN), len(SEGWIT)]


SCRIPTS = [(b"", True), (b"\x6a", False), (b"\x6a" + b"d" * 80, False), (b"\x51\x6a", True)]
SCRIPTS += [(b"\x51" * 10_000, True), (b"\x51" * 10_001, False), (b"\x51" * 70_000, False)]


@pytest.mark.parametrize(("script", "spendable"), SCRIPTS, ids=range(len(SCRIPTS)))
def test_unspendable_scripts_are_marked(script: bytes, spendable: bool) -> None:
    raw = made_block([made_coinbase(outputs=[made_output(3, script), made_output(4)])])
    assert decode_block(raw, 1).txs[0].outputs == [Output(script, 3, spendable=spendable), Output(b"\x51", 4)]
    assert all(output.spendable for output in decode_block(raw, 1, mark_unspendable=False).txs[0].outputs)


@pytest.mark.parametrize("transactions", [1, 2, 3, 4, 5, 252, 253, 300])
def test_merkle_roots(transactions: int) -> None:
    txs = [made_coinbase(), *(made_tx([made_input(index=i)], [made_output(i)]) for i in range(1, transactions))]
    assert len(decode_block(made_block(txs), 1).txs) == transactions
    with pytest.raises(BlockError, match="Merkle"):
        decode_block(made_block(txs, root=b"\x01" * 32), 1)
    decode_block(made_block(txs, root=b"\x01" * 32), 1, check_merkle=False)


def test_repeated_transactions_with_the_same_root_are_refused() -> None:
    txs = [made_coinbase(), PLAIN, made_tx([made_input(index=5)], [made_output()])]
    forged = [*txs, txs[-1]]
    assert made_root([twice(tx) for tx in txs]) == made_root([twice(tx) for tx in forged])
    with pytest.raises(BlockError, match="twice"):
        decode_block(made_block(forged), 1)


def with_second(tx: bytes) -> bytes:
    return made_block([made_coinbase(), tx])


BROKEN = {
    "nothing": (b"", "0 bytes are not a block"),
    "only a header": (MIXED[:80], "80 bytes are not a block"),
    "trailing": (MIXED + b"\0", f"1 excess bytes after 3 transactions, from byte {len(MIXED)}"),
    "too few transactions": (MIXED[:80] + b"\x02" + MIXED[81:], "excess bytes after 2 transactions"),
    "too many transactions": (MIXED[:80] + b"\x04" + MIXED[81:], f"transaction 3 at byte {len(MIXED)} continues after"),
    "no transactions": (MIXED[:80] + b"\x00" * 100, "99 excess bytes after 0"),
    "cut": (MIXED[:-1], f"transaction 2 at byte {len(MIXED) - len(SEGWIT)} continues after the last byte"),
    "no coinbase": (made_block([PLAIN]), "transaction 0 at byte 81: the first one, and no other, must be a coinbase"),
    "two coinbases": (with_second(made_coinbase(b"2")), "the first one, and no other, must be a coinbase"),
    "coinbase input among others": (
        with_second(made_tx([made_input(), made_input(bytes(32), 0xFFFFFFFF)], [made_output()])),
        "the first one, and no other, must be a coinbase",
    ),
    "no inputs": (with_second(made_tx([], [made_output()] * 2)), "a transaction without inputs"),
    "no inputs, segwit": (with_second(made_tx([], [made_output()], b"")), "a transaction without inputs"),
    "no outputs": (with_second(made_tx([made_input()], [])), "a transaction without outputs"),
    "empty witnesses": (
        with_second(made_tx([made_input()], [made_output()], b"\0")),
        "is marked as having witnesses, but has none",
    ),
    "long form of a short count": (
        MIXED[:80] + b"\xfd\x03\x00" + MIXED[81:],
        "byte 80: 3 is not written in its shortest form",
    ),
    "longer form of a long script": (
        made_block(
            [made_coinbase(outputs=[made_output(1, bytes(65_535)).replace(b"\xfd\xff\xff", b"\xfe\xff\xff\0\0")])]
        ),
        "65535 is not written in its shortest form",
    ),
    "endless transactions": (MIXED[:80] + b"\xff" * 9 + MIXED[81:], "byte 80: a count or length of 184467440737095516"),
    "many transactions": (MIXED[:80] + b"\xfd\x00\x02" + MIXED[81:], "transaction 3 at byte"),
    "endless script": (with_second(PLAIN.replace(b"\xfd\x2c\x01", b"\xfe\xff\xff\xff\x7f")), "length of 2147483647"),
    "endless witness": (with_second(SEGWIT.replace(b"\xfd\x00\x01", b"\xfd\x00\xff")), "length of 65280"),
    "too large": (made_block([made_coinbase(outputs=[made_output(1, bytes(4_000_000))])]), "at most 4000000"),
}


@pytest.mark.parametrize(("raw", "message"), BROKEN.values(), ids=BROKEN)
def test_malformed_blocks_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(BlockError) as error:
        decode_block(raw, 1, REGTEST)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_truncation_is_refused() -> None:
    for length in range(len(MIXED)):
        with pytest.raises(BlockError):
            decode_block(MIXED[:length], 1, check_merkle=False)
