"""Golden bytes of the chain's tables: every table, key and value.

If one of these fails, the format on disk changed: raise `storage.history.layout.FORMAT` and write docs/format.md first.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator
from hashlib import blake2b, sha256
from pathlib import Path

import pytest
from chains import Options, back_to, block, feed, open_chain, prune_all, rows

from daemon.store import TABLES as ALL_TABLES
from handlers.chain import Chain
from handlers.events import BlockApplied, BlockPersisted, Details, GenesisOutput, GenesisOutputs, Issuer, Output, Tx
from storage.history.layout import FORMAT, OUTPUT_RECORD, SPEND, TABLES, TX_RECORD, TXID_ENTRY
from storage.history.mmr import TABLES as MMR_TABLES
from storage.history.runs import Count, Manifest, Merge, Run
from storage.indexes import NAMES
from storage.rows import seal_row

Rows = dict[bytes, bytes]
Entries = list[tuple[bytes, int]]  # digest, number

KEYS = [3, 5, 7, 11]
KEY, STAKE, POLICY = "aa" * 28, "bb" * 28, "cc" * 28
PLAIN, BASE = f"61{KEY}", f"01{KEY}{STAKE}"  # an enterprise address, and one with a stake credential
GENESIS, FUNDS, SPENDING, FAILED = (bytes((n,)) * 32 for n in (0x10, 0x11, 0x12, 0x13))
BEFORE, FIRST, SECOND, THIRD = (bytes((n,)) * 32 for n in (0xB0, 0xB1, 0xB2, 0xB3))


def plain(value: int) -> Output:
    return Output(bytes.fromhex(PLAIN), value)


def named(value: int) -> Output:
    return Output(bytes.fromhex(PLAIN), value, datum_hash=UNIT_HASH)


RICH = Output(
    bytes.fromhex(BASE),
    2**64 - 1,
    [(bytes.fromhex(POLICY), b"gold", 5), (bytes.fromhex(POLICY), b"", 2**63 - 1)],
    datum_hash=b"\xd1" * 32,
    inline_datum=b"\x01\x02",
    script_ref=b"\x03",
    script_ref_hash=b"\xd2" * 28,
)
UNSPENDABLE = Output(b"\x6a", 0, spendable=False)
UNIT = bytes.fromhex("d87980")  # a datum
UNIT_HASH = bytes.fromhex("923918e403bf43c34b4ef6b48eb2ee04babed17320d8d1b9ff9ad086e86f44ec")

SEED = GenesisOutputs(outputs=[GenesisOutput(GENESIS, 7, plain(1000))])
BLOCKS = [  # numbers: the genesis has 0 to 7, the first block 8 to 10, the second one 11 to 13
    BlockApplied(
        height=100,
        slot=2000,
        hash=FIRST,
        prev_hash=BEFORE,
        time=1_757_500_000,
        epoch=450,
        size=300,
        header=b"\x0a\x0b",
        block_id=900,
        era="conway",
        issuer=Issuer(vkey=b"\x01", op_cert_counter=5),
        txs=[Tx(FUNDS, [], [plain(1), UNSPENDABLE, RICH], coinbase=True, fee=9, size=250, subtree_index=2)],
    ),
    BlockApplied(  # without a slot: it is the height
        height=101,
        hash=SECOND,
        txs=[
            Tx(SPENDING, [(GENESIS, 7), (FUNDS, 0)], [named(300)], datums=[b"\x80", UNIT]),
            Tx(
                FAILED,
                [],
                [plain(9)],
                valid=False,
                collateral=[(SPENDING, 0)],
                collateral_return=plain(2),
                details=Details(invalid_hereafter=300, redeemer_count=1),
            ),
        ],
    ),
]


def apply_all(chain: Chain) -> None:
    chain.seed(SEED)
    feed(chain, BLOCKS[0])
    feed(chain, BLOCKS[1])
    chain.persisted(BlockPersisted(height=99))
    chain.commit()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = iter(KEYS)
    monkeypatch.setattr(secrets, "randbits", lambda _: next(chosen))


@pytest.fixture
def applied(tmp_path: Path, keys: None) -> Iterator[Chain]:
    with open_chain(tmp_path, indexes=NAMES) as chain:
        apply_all(chain)
        yield chain


# --- how bytes are written here ------------------------------------------------------------------------------------


def crc(raw: bytes) -> bytes:
    return zlib.crc32(raw).to_bytes(4, "little")


def value(count: int, raw: bytes) -> bytes:
    body = count.to_bytes(4, "little") + raw
    return crc(body) + body


def summed(raw: bytes) -> bytes:
    return raw + crc(raw)


def row(text: str) -> bytes:
    return summed(bytes.fromhex(text))


def little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=number < 0)


def big(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "big")


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def prefix(digest: bytes) -> int:
    words = [int.from_bytes(digest[n : n + 8], "little") for n in range(0, 32, 8)]
    words = [word ^ word >> 16 for word in [word ^ word >> 32 for word in words]]
    x = sum(w * k for w, k in zip(words, KEYS, strict=True)) % (1 << 64)
    x ^= x >> 32
    x = x * 0x9E3779B97F4A7C15 % (1 << 64)
    return x ^ x >> 29


# --- tables --------------------------------------------------------------------------------------------------------


def test_the_format_has_a_number_and_a_page() -> None:
    assert FORMAT == 5
    assert tuple(f"history_{name}" for name in ("block", "tx", "output", "live", "undo", "run", "filter")) == TABLES
    assert (TX_RECORD.itemsize, OUTPUT_RECORD.itemsize, SPEND.itemsize, TXID_ENTRY.itemsize) == (64, 24, 16, 24)
    page = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
    assert [table for table in (*ALL_TABLES, *MMR_TABLES) if f"`{table.rstrip('*')}`" not in page] == []


def test_a_block(applied: Chain) -> None:
    """Place; first number, numbers; counts; failed; size, previous, header, block id, era, issuer; sums."""
    zero, first, second = f"c420{'00' * 32}", f"c420{FIRST.hex()}", f"c420{SECOND.hex()}"
    assert rows(applied.store, "history_block") == {
        big(0, 4): row(f"dc0013 00 00 {zero} c0 c0 00 08 01 01 00 c2 c0 c0 c0 c0 c0 c0 cd03e8 c0"),
        big(1, 4): row(
            f"dc0013 64 cd07d0 {first} ce68c15260 cd01c2 08 03 01 02 00 c2"
            f"cd012c c420{BEFORE.hex()} c4020a0b cd0384 a6636f6e776179 94 c40101 c0 c0 05 c0 09"
        ),
        big(2, 4): row(f"dc0013 65 65 {second} c0 c0 0b 03 02 02 03 c3 c0 c0 c0 c0 c0 c0 cd012e c0"),
    }


def test_a_transaction(applied: Chain) -> None:
    """Number, id, fee; count of outputs and flags: 1 invalid, 2 collateral return, 4 coinbase; block, size, subtree."""
    nothing = little(-(1 << 63), 8)
    assert rows(applied.store, "history_tx") == {
        big(0): value(1, little(0, 8) + GENESIS + nothing + little(8 << 3, 4) + little(0, 4) + b"\xff" * 8),
        big(8): value(
            1,
            little(8, 8) + FUNDS + little(9, 8) + little(3 << 3 | 4, 4) + little(1, 4) + little(250, 4) + little(2, 4),
        ),
        big(11): value(
            2,
            little(11, 8)
            + SPENDING
            + nothing
            + little(1 << 3, 4)
            + little(2, 4)
            + b"\xff" * 8
            + little(12, 8)
            + FAILED
            + nothing
            + little(2 << 3 | 3, 4)
            + little(2, 4)
            + b"\xff" * 8,
        ),
    }


OTHERS = bytes.fromhex(  # assets, datum hash, inline datum, script, its hash, is a collateral return; the hash's datum
    f"97 92 93 c41c{POLICY} c404676f6c64 05 93 c41c{POLICY} c400 cf7fffffffffffffff"
    f"c420{'d1' * 32} c4020102 c40103 c41c{'d2' * 28} c2 c0"
)
NAMED = bytes.fromhex(f"97 90 c420{UNIT_HASH.hex()} c0 c0 c0 c2 c403{UNIT.hex()}")
RETURNED = bytes.fromhex("97 90 c0 c0 c0 c0 c3 c0")


def test_an_output(applied: Chain) -> None:
    """Number, value, how long the address is, how long all of it is; then addresses and what is behind them."""

    def head(number: int, amount: int, address: int, other: bytes = b"") -> bytes:
        return little(number, 8) + amount.to_bytes(8, "little") + little(address, 4) + little(address + len(other), 4)

    short, long = bytes.fromhex(PLAIN), bytes.fromhex(BASE)
    assert rows(applied.store, "history_output") == {
        big(7): value(1, head(7, 1000, 29) + short),
        big(8): value(2, head(8, 1, 29) + head(10, 2**64 - 1, 57, OTHERS) + short + long + OTHERS),
        big(11): value(2, head(11, 300, 29, NAMED) + head(13, 2, 29, RETURNED) + short + NAMED + short + RETURNED),
    }


def test_the_unspent_bits(applied: Chain) -> None:
    bits = bytes([0, 0b100100]) + bytes(126)  # outputs 10 and 13
    assert rows(applied.store, "history_live") == {bytes(4): bits + crc(bits)}


def test_an_undo_log(applied: Chain) -> None:
    """Of each spend the output, the spender from the first number of the block, and the input; datums; details."""
    spends = [(7, 0, 0), (8, 0, 1), (11, 1, 0)]
    written = b"".join(little(number, 8) + little(spender, 4) + little(at, 4) for number, spender, at in spends)
    assert rows(applied.store, "history_undo") == {
        big(1, 4) + big(0, 4): value(0, b""),
        big(2, 4) + big(0, 4): value(3, written),
        big(2, 4) + big(1 << 31, 4): value(1, bytes.fromhex("92 02 91 c40180")),
        big(2, 4) + big(3 << 30, 4): value(2, bytes.fromhex("92 02 92 9202c0 92019cc0cd012c0000000000000000 0100")),
    }


def padded(text: str) -> bytes:
    return bytes.fromhex(text).ljust(32, b"\0")


def of(address: str) -> bytes:
    return sha256(bytes.fromhex(address)).digest()


GOLD, NAMELESS = (sha256(bytes.fromhex(POLICY) + name).digest() for name in (b"gold", b""))
OUTPUTS = {8: GENESIS, 3: FUNDS, 1: SPENDING, 2: FAILED}  # by how many outputs each transaction counts
RUNS: list[tuple[str, Entries]] = [  # from 1 on, in the order in which they are written
    ("txid", [(GENESIS, 0)]),
    ("address_hash", [(of(PLAIN), 7)]),
    ("payment_credential", [(padded(KEY), 7)]),
    ("history", [(of(PLAIN), 0)]),
    ("block", [(bytes(32), 0)]),
    ("txid", [(FUNDS, 8)]),
    ("address_hash", [(of(PLAIN), 8), (of(BASE), 10)]),
    ("payment_credential", [(padded(KEY), 8), (padded(KEY), 10)]),
    ("stake_credential", [(padded(STAKE), 10)]),
    ("policy", [(padded(POLICY), 10)]),
    ("asset", [(GOLD, 10), (NAMELESS, 10)]),
    ("datum", [(RICH.datum_hash or b"", 10)]),
    ("script", [(padded("d2" * 28), 10)]),
    ("history", [(of(PLAIN), 8), (of(BASE), 8)]),
    ("block", [(FIRST, 1)]),
    ("txid", [(SPENDING, 11), (FAILED, 12)]),
    ("address_hash", [(of(PLAIN), 11), (of(PLAIN), 13)]),
    ("payment_credential", [(padded(KEY), 11), (padded(KEY), 13)]),
    ("datum", [(UNIT_HASH, 11)]),
    ("spender", []),  # of which the prefix is the number of the output itself
    ("history", [(of(PLAIN), 11), (of(PLAIN), 12)]),
    ("block", [(SECOND, 2)]),
]
NO_COUNT = "94 00 ff 00 00"
SPENT = [(7, 11), (8, 11), (11, 12)]


def entries_of(kind: str, listed: Entries) -> list[tuple[int, int, bytes]]:
    """Return prefix, number, and what is behind them, in order."""
    if kind == "spender":
        return [(number, by, b"") for number, by in SPENT]
    counts = {txid: count for count, txid in OUTPUTS.items()}
    entries = []
    for digest, number in listed:
        more = xor(digest[24:28], digest[28:32]) + little(counts[digest], 4) if kind == "txid" else b""
        entries.append((prefix(digest), number, more))
    return sorted(entries)


def test_runs(applied: Chain) -> None:
    expected = Rows()
    for run, (kind, listed) in enumerate(RUNS, start=1):
        entries = entries_of(kind, listed)
        written = [entry.to_bytes(8, "little") + little(number, 8) + other for entry, number, other in entries]
        expected[big(run, 4) + big(entries[0][0]) + big(entries[0][1])] = value(len(entries), b"".join(written))
    assert rows(applied.store, "history_run") == expected


def test_a_filter(applied: Chain) -> None:
    """Each entry sets up to four bits of a word."""
    expected = Rows()
    for run, (kind, listed) in enumerate(RUNS, start=1):
        if kind == "txid":
            word = 0
            for key, _, _ in entries_of(kind, listed):
                word |= sum({1 << (key >> shift & 63) for shift in (0, 6, 12, 18)})
            expected[big(run, 4) + big(0, 4)] = value(1, word.to_bytes(8, "little"))
    assert rows(applied.store, "history_filter") == expected


def test_the_word_of_a_filter(tmp_path: Path, keys: None) -> None:
    """The upper half of the prefix chooses the word."""
    first = block(None, *(Tx(bytes((n,)) * 32, [], [plain(n)]) for n in range(50)))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        found = rows(chain.store, "history_filter")
    words = [0] * (50 * 12 // 64)
    for tx in first.txs:
        key = prefix(tx.txid)
        words[(key >> 32) * len(words) >> 32] |= sum({1 << (key >> shift & 63) for shift in (0, 6, 12, 18)})
    assert list(found.values()) == [value(9, b"".join(word.to_bytes(8, "little") for word in words))]


def test_the_meta_rows(applied: Chain) -> None:
    lists = {f"runs:{kind}".encode(): bytearray() for kind, _ in RUNS}
    counts = dict.fromkeys(lists, 0)
    for run, (kind, listed) in enumerate(RUNS, start=1):
        low, high = ((0, 8), (8, 11), (11, 14))[(run > 5) + (run > 15)]
        if kind == "block":
            low, high = listed[0][1], listed[0][1] + 1
        entries = len(entries_of(kind, listed))
        lists[f"runs:{kind}".encode()] += bytes((0x97, run, low, high, 0, entries, entries, entries))
        counts[f"runs:{kind}".encode()] += 1
    assert rows(applied.store, "utxo_meta") == {
        b"format": bytes.fromhex("00000005"),
        b"chain": summed(b"cardano/mainnet"),
        b"genesis": row("525dd42f11ded063c8266ce92609da47d24ac3ab0473aa580ab9140ead90f180"),
        b"indexes": summed(",".join(NAMES).encode()),
        b"history_from": summed(bytes(4)),
        b"state": row("97 9403 05 07 0b 02 02 00 0e 63 16"),  # keys; tip, unspent, floor, next number, persisted, run
    } | {name: row(f"94 {0x90 + counts[name]:02x} {listed.hex()} 90 90 {NO_COUNT}") for name, listed in lists.items()}


def test_a_list_of_runs() -> None:
    """Runs in force, merges in progress, runs whose values are to be deleted, and what is being counted."""
    listed = Manifest([Run(3, 0, 9, 1, 5, 6, 2)], [Merge([3], 4, 1, 2, 7, 8, 1)], [2], Count(3, 0, 4, 1))
    assert seal_row(listed) == row("94 91 97 03 00 09 01 05 06 02 91 97 9103 04 01 02 07 08 01 91 02 94 03 00 04 01")


def test_the_genesis_is_remembered_by_its_digest(applied: Chain) -> None:
    """The digest is of the outputs in MessagePack with every field, including defaults."""
    nothing = "aa646174756d5f68617368 c0 ac696e6c696e655f646174756d c0 aa7363726970745f726566 c0"
    nothing += "af7363726970745f7265665f68617368 c0 a97370656e6461626c65 c3"
    output = f"88 a761646472657373 c41d{PLAIN} a576616c7565 cd03e8 a6617373657473 90 {nothing}"
    whole = f"91 83 a474786964 c420{GENESIS.hex()} a5696e646578 07 a66f7574707574 {output}"
    digest = blake2b(bytes.fromhex(whole), digest_size=32).digest()
    assert rows(applied.store, "utxo_meta")[b"genesis"] == summed(digest)


# --- what changes them ---------------------------------------------------------------------------------------------


def test_a_transaction_id_that_is_used_again(applied: Chain) -> None:
    """The new transaction spends the outputs of the old one, with no input."""
    feed(applied, BlockApplied(height=102, hash=THIRD, txs=[Tx(FUNDS, [], [plain(1)], coinbase=True)]))
    replaced = little(10, 8) + little(0, 4) + b"\xff" * 4
    assert rows(applied.store, "history_undo")[big(3, 4) + big(0, 4)] == value(1, replaced)
    bits = bytes([0, 0b1100000]) + bytes(126)  # outputs 13 and 14
    assert rows(applied.store, "history_live") == {bytes(4): bits + crc(bits)}


def test_a_rollback_gives_numbers_back(applied: Chain) -> None:
    """The runs of blocks that were rolled back wait to be deleted."""
    applied.rollback(back_to(BLOCKS[0]))
    bits = bytes([0b10000000, 0b101]) + bytes(126)
    assert rows(applied.store, "history_live") == {bytes(4): bits + crc(bits)}
    meta = rows(applied.store, "utxo_meta")
    assert meta[b"state"] == row("97 9403 05 07 0b 01 03 00 0b 63 16")
    assert meta[b"runs:txid"] == row(f"94 92 97 01 00 08 00 01 01 01 97 06 08 0b 00 01 01 01 90 91 10 {NO_COUNT}")
    assert max(rows(applied.store, "history_tx")) == big(8)
    assert max(rows(applied.store, "history_output")) == big(8)


def test_what_pruning_leaves(tmp_path: Path, keys: None) -> None:
    """Undo logs up to the floor and the runs of their spends are deleted; every block keeps its row."""
    with open_chain(tmp_path, **Options(prune_depth=0, rollback_window=1)) as chain:
        apply_all(chain)
        third = BlockApplied(height=102, hash=THIRD)
        feed(chain, third)
        feed(chain, block(third, hash=b"\xb4" * 32))
        prune_all(chain)
        assert set(rows(chain.store, "history_undo")) == {big(3, 4) + big(0, 4), big(4, 4) + big(0, 4)}
        assert set(rows(chain.store, "history_block")) == {big(n, 4) for n in range(5)}
        meta = rows(chain.store, "utxo_meta")
    assert meta[b"state"].startswith(bytes.fromhex("97 9403 05 07 0b 04 02 02 0e 63"))
    assert meta[b"runs:spender"] == row(f"94 90 90 90 {NO_COUNT}")
