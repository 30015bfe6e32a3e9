"""Golden bytes of every table.

If this fails, the format on disk changed: raise `storage.utxo.FORMAT` and write `docs/format.md` first.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import Options, block, dump, feed, open_chain, prune_all
from storage.utxo import FORMAT, TABLES

from handlers.chain import Chain
from handlers.events import BlockApplied, BlockPersisted, GenesisOutput, GenesisOutputs, Output, Tx

KEY, STAKE, POLICY = "aa" * 28, "bb" * 28, "cc" * 28
PLAIN, BASE = f"61{KEY}", f"01{KEY}{STAKE}"  # an enterprise address, and one with a stake credential
GENESIS, FUNDS, SPEND, FAILED = "10" * 32, "11" * 32, "12" * 32, "13" * 32
FIRST, SECOND = "b1" * 32, "b2" * 32


def plain(value: int) -> Output:
    return Output(bytes.fromhex(PLAIN), value)


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


def transaction(name: str, spent: list[tuple[str, int]], outputs: list[Output], **parts: bool | Output) -> Tx:
    points = [(bytes.fromhex(txid), index) for txid, index in spent]
    where = "collateral" if "valid" in parts else "inputs"
    return Tx(**{"txid": bytes.fromhex(name), where: points, "outputs": outputs} | parts)  # type: ignore[arg-type]


BLOCKS = [
    BlockApplied(
        height=100,
        slot=2000,
        hash=bytes.fromhex(FIRST),
        time=1_757_500_000,
        epoch=450,
        txs=[transaction(FUNDS, [], [plain(1), UNSPENDABLE, RICH], coinbase=True)],
    ),
    BlockApplied(  # without a slot: it is the height
        height=101,
        hash=bytes.fromhex(SECOND),
        txs=[
            transaction(SPEND, [(GENESIS, 7), (FUNDS, 0)], [plain(300)]),
            transaction(FAILED, [(SPEND, 0)], [plain(9)], valid=False, collateral_return=plain(2)),
        ],
    ),
]


def tell(chain: Chain) -> None:
    chain.seed(GenesisOutputs(outputs=[GenesisOutput(bytes.fromhex(GENESIS), 7, plain(1000))]))
    feed(chain, *BLOCKS)
    chain.persisted(BlockPersisted(height=99))
    chain.commit()


def written(folder: Path, **options: bool) -> dict[str, dict[str, str]]:
    with open_chain(folder, **Options(**options)) as chain:  # type: ignore[typeddict-item]
        tell(chain)
        return in_hex(chain)


def in_hex(chain: Chain) -> dict[str, dict[str, str]]:
    tables = dump(chain.store).items()
    return {table: {key.hex(): value.hex() for key, value in rows.items()} for table, rows in tables}


# Places: block, transaction, output.
G_7 = "000000000000000000000007"
F_0 = "000000010000000000000000"
F_2 = "000000010000000000000002"
S_0 = "000000020000000000000000"
X_1 = "000000020000000100000001"

# Bodies: an array of two, or of eight.
BODY_1000 = f"92 c41d{PLAIN} cd03e8"
BODY_1 = f"92 c41d{PLAIN} 01"
BODY_300 = f"92 c41d{PLAIN} cd012c"
BODY_RICH = (
    f"98 c439{BASE} cfffffffffffffffff"
    f"92 93 c41c{POLICY} c404676f6c64 05 93 c41c{POLICY} c400 cf7fffffffffffffff"
    f"c420{'d1' * 32} c4020102 c40103 c41c{'d2' * 28} c2"
)
BODY_RETURN = f"98 c41d{PLAIN} 02 90 c0 c0 c0 c0 c3"

GOLDEN = {
    "utxo_block": {  # height, slot, hash, time, epoch
        "00000000": f"95 00 00 c420{'00' * 32} c0 c0",
        "00000001": f"95 64 cd07d0 c420{FIRST} ce68c15260 cd01c2",
        "00000002": f"95 65 65 c420{SECOND} c0 c0",
    },
    "utxo_block_hash": {FIRST: "00000001", SECOND: "00000002"},
    "utxo_tx": {  # txid, flags: 1 invalid, 2 with a collateral return, 4 coinbase
        "0000000000000000": f"{GENESIS} 00",
        "0000000100000000": f"{FUNDS} 04",
        "0000000200000000": f"{SPEND} 00",
        "0000000200000001": f"{FAILED} 03",
    },
    "utxo_txid": {
        GENESIS: "0000000000000000",
        FUNDS: "0000000100000000",
        SPEND: "0000000200000000",
        FAILED: "0000000200000001",
    },
    "utxo_output": {  # a body; behind a mark, the spender's place and the input's index once it is spent
        G_7: f"01 00000002 00000000 00000000 {BODY_1000}",
        F_0: f"01 00000002 00000000 00000001 {BODY_1}",
        F_2: BODY_RICH,
        S_0: f"01 00000002 00000001 00000000 {BODY_300}",
        X_1: BODY_RETURN,
    },
    "utxo_block_delta": {  # hash, created, spent, flags, transactions' flags, replaced, bodies
        "00000001": f"97 c420{FIRST} 91 02 c400 00 c40104 90 c0",
        "00000002": f"97 c420{SECOND} 92 01 01 c424 {G_7} {F_0} {S_0} 01 c4020003 90 c0",
    },
    "tx_block": {},  # written beside a transaction store alone: see test_format_transactions.py
    "utxo_meta": {
        b"chain".hex(): b"cardano/mainnet".hex(),
        b"format".hex(): "00000001",
        b"genesis".hex(): "525dd42f11ded063c8266ce92609da47d24ac3ab0473aa580ab9140ead90f180",
        b"indexes".hex(): b"address_hash,payment_credential,stake_credential,policy".hex(),
        b"state".hex(): "96 02 02 00 920100 920100 63",  # tip, unspent, floor, two cursors, persisted
    },
    "utxo_addr": {  # hash of the address → places
        "3d9f4dbc295fe393ce8a763623af6fcaeb36804da99b00d14c50eb9e": X_1,
        "f610f34789fec601a7c70ca037adb49e6d818a7383673f95305ca9a6": F_2,
    },
    "utxo_cred": {KEY: F_2 + X_1},
    "utxo_stake": {STAKE: F_2},
    "utxo_policy": {POLICY: F_2},
}
EMBEDDED = {
    "00000001": f"97 c420{FIRST} 91 02 c400 00 c40104 90 90",
    "00000002": f"97 c420{SECOND} 92 01 01 c424 {G_7} {F_0} {S_0} 01 c4020003 90"
    f"93 c423{BODY_1000} c421{BODY_1} c423{BODY_300}",
}


def test_the_format_has_a_number() -> None:
    assert FORMAT == 1
    assert {table.rstrip("*") for table in TABLES} == {*GOLDEN, "tx_block", "change_log"}  # have tests of their own
    assert [table for table in TABLES if table.endswith("*")] == [
        "utxo_addr*",
        "utxo_cred*",
        "utxo_stake*",
        "utxo_policy*",
    ]


@pytest.mark.parametrize("table", GOLDEN)
def test_bytes_on_disk(table: str, tmp_path: Path) -> None:
    expected = {key: value.replace(" ", "") for key, value in GOLDEN[table].items()}
    assert written(tmp_path)[table] == expected


def test_bytes_of_undo_with_bodies(tmp_path: Path) -> None:
    """Only the undo records differ between the modes."""
    tables = written(tmp_path, self_contained=True)
    assert tables["utxo_block_delta"] == {key: value.replace(" ", "") for key, value in EMBEDDED.items()}
    compact = written(tmp_path / "compact")
    assert {name for name in tables if tables[name] != compact[name]} == {"utxo_block_delta"}


def test_bytes_of_undo_after_a_repeated_id(tmp_path: Path) -> None:
    """What it replaced is spent at index 0xffffffff, and its earlier place is in the record."""
    again = BlockApplied(height=102, hash=b"\xb3" * 32, txs=[transaction(FUNDS, [], [plain(1)], coinbase=True)])
    with open_chain(tmp_path) as chain:
        tell(chain)
        feed(chain, again)
        tables = in_hex(chain)
    place = "0000000300000000"
    assert tables["utxo_txid"][FUNDS] == place
    assert tables["utxo_output"][F_2] == f"01{place}ffffffff{BODY_RICH}".replace(" ", "")
    record = f"97 c420{'b3' * 32} 91 01 c40c {F_2} 00 c40104 91 92 c420{FUNDS} c408{F_2[:16]} c0"
    assert tables["utxo_block_delta"]["00000003"] == record.replace(" ", "")


def test_bytes_of_a_pruned_store(tmp_path: Path) -> None:
    """With embedded bodies a spent row is its mark alone until the undo record goes too."""
    with open_chain(tmp_path, self_contained=True, prune_depth=0, rollback_window=2) as chain:
        tell(chain)
        feed(chain, third := block(BLOCKS[-1], hash=b"\xb3" * 32))
        prune_all(chain)
        marks = in_hex(chain)
        feed(chain, fourth := block(third, hash=b"\xb4" * 32), block(fourth, hash=b"\xb5" * 32))
        prune_all(chain)
        gone = in_hex(chain)
    assert marks["utxo_output"][G_7] == "01000000020000000000000000"
    assert marks["utxo_output"][S_0] == "01000000020000000100000000"
    assert marks["utxo_meta"][b"state".hex()] == "9603020092030092010063"
    assert set(gone["utxo_output"]) == {F_2, X_1}
    assert set(gone["utxo_txid"]) == {FUNDS, FAILED}
    assert set(gone["utxo_block"]) == {"00000001", "00000002", "00000003", "00000004", "00000005"}
    assert set(gone["utxo_block_delta"]) == {"00000003", "00000004", "00000005"}
    assert gone["utxo_meta"][b"state".hex()] == "9605020292050092030063"
