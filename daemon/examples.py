"""An example of each message on the socket: a sequence that a new daemon of cardano/preview accepts in full.

The reference (`daemon.reference`) shows the first example of each type. Hashes and ids are repeated bytes here, so
that a reader can recognise each of them where it comes again.
"""

from __future__ import annotations

from handlers.causes import Submitted
from handlers.events import (
    Ack,
    BlockApplied,
    BlockCommitted,
    BlockPersisted,
    ChainName,
    Error,
    GenesisOutput,
    GenesisOutputs,
    Hello,
    Inbound,
    Issuer,
    NetworkTip,
    NodeState,
    Outbound,
    Output,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Point,
    Pruned,
    Rollback,
    RollbackPoint,
    RolledBack,
    Subscribe,
    Tx,
    TxConflicting,
    TxLocked,
    TxMined,
    TxPreserved,
    TxStatusChanged,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
    Welcome,
    WinnersDecided,
)


def _hash(digits: str) -> bytes:
    return bytes.fromhex(digits * 32)


_ANN, _BOB = (b"\x60" + bytes.fromhex(digits * 28) for digits in ("aa", "bb"))  # enterprise addresses of a test network
_SEED, _PAID, _WAITS = _hash("a0"), _hash("a1"), _hash("a2")
_FIRST, _SECOND = Point(1, 20, _hash("b1")), Point(2, 40, _hash("b2"))
_POLICY = bytes.fromhex("dd" * 28)

SEQUENCE: tuple[Inbound, ...] = (
    Hello(seq=1, client="mine/1.0", network_tip=NetworkTip(height=2, slot=40)),
    Subscribe(seq=2, events=["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"], from_sequence=1),
    GenesisOutputs(seq=3, outputs=[GenesisOutput(_SEED, 0, Output(_ANN, 10_000_000))]),
    NodeState(seq=4, state="running", height=2),
    BlockApplied(
        seq=5,
        height=1,
        hash=_FIRST.hash,
        slot=20,
        prev_hash=_hash("b0"),
        time=1_666_656_020,
        epoch=0,
        era="babbage",
        block_id=1,
        size=812,
        issuer=Issuer(vkey=_hash("e1"), vrf_vkey=_hash("e2"), op_cert=_hash("e3"), op_cert_counter=7),
        txs=[
            Tx(
                txid=_PAID,
                inputs=[(_SEED, 0)],
                outputs=[
                    Output(_BOB, 2_000_000, assets=[(_POLICY, b"coin", 5)]),
                    Output(_ANN, 3_000_000, inline_datum=bytes.fromhex("182a")),
                    Output(_ANN, 4_830_000),
                ],
                fee=170_000,
                size=291,
            )
        ],
    ),
    BlockPersisted(seq=6, height=1, hash=_FIRST.hash),
    TxSubmitted(
        seq=7,
        tx=Tx(
            txid=_WAITS,
            inputs=[(_PAID, 2)],
            outputs=[Output(_BOB, 4_660_000)],
            fee=170_000,
            previous=[(4_830_000, _ANN)],
        ),
        on_spent="record",
    ),
    TxLocked(seq=8, txids=[_WAITS]),
    TxUnlocked(seq=9, txids=[_WAITS]),
    OutputsFrozen(seq=10, outpoints=[(_PAID, 0), (_PAID, 1)]),
    OutputReassigned(seq=11, outpoint=(_PAID, 0), address=_ANN),
    OutputsUnfrozen(seq=12, outpoints=[(_PAID, 1)]),
    TxConflicting(seq=13, txids=[_WAITS]),
    WinnersDecided(seq=14, txids=[_WAITS]),
    TxPreserved(seq=15, txids=[_WAITS], until=2000),
    TxMined(seq=16, txids=[_WAITS], block_id=77, height=2, longest=False),
    TxMined(seq=17, txids=[_WAITS], block_id=77, height=2, unset=True),
    TxWithdrawn(seq=18, txids=[_WAITS], reason="replaced"),
    BlockApplied(seq=19, height=2, hash=_SECOND.hash, slot=40, prev_hash=_FIRST.hash),
    Rollback(seq=20, to=RollbackPoint(slot=20, hash=_FIRST.hash, height=1)),
    BlockApplied(seq=21, height=3, hash=_hash("b3"), slot=60, prev_hash=_SECOND.hash),
)
_ABOUT_BLOCK_3 = (
    f"block 3 {_hash('b3').hex()} does not follow the tip 1 {_FIRST.hash.hex()}: blocks are missing between them"
)
ANSWERS: tuple[Outbound, ...] = (
    Welcome(
        protocol=1,
        version="0.1.0",
        chain=ChainName("cardano", "preview"),
        tip=_FIRST,
        points=[_FIRST],
        rollback_floor=None,
        persisted_height=1,
        network_tip_height=2,
        seconds_since_last_block=1.5,
        feeder_away_s=0.0,
        store_id="5f0c7a0e9d3b4c8e",
        newest_sequence=2,
        seq=1,
    ),
    Ack(seq=5, status="applied", tip=_FIRST),
    Error(
        seq=21,
        code="gap",
        message=_ABOUT_BLOCK_3,
        detail={"tip": {"height": 1, "slot": 20, "hash": _FIRST.hash}},
    ),
    BlockCommitted(height=1, slot=20, hash=_FIRST.hash, txs=1, created=3, spent=1, missing_inputs=0, sequence=1),
    RolledBack(from_=_SECOND, to=_FIRST, blocks=1, sequence=7),
    Pruned(spent_outputs=12, transactions=3, undo_records=1, floor=_FIRST, sequence=8),
    TxStatusChanged(txid=_WAITS, status="pending", height=1, cause=Submitted(), sequence=2),
)
EXAMPLES: tuple[Inbound | Outbound, ...] = (*SEQUENCE, *ANSWERS)
