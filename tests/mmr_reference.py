"""The MMR that a store should have, hashed from all of its leaves; and reading that of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from struct import pack
from typing import Any

import cbor2
import pytest
from chains import CODEC, rows
from model import Coin, Model, Moment, made

import storage.history.mmr
import storage.history.mmr_nodes
from handlers.addresses.shelley import stake_address
from handlers.chain import Chain
from handlers.events import OutPoint
from handlers.proofs import MmrProof, prove
from handlers.query import Query
from storage.history.mmr import TABLES, StoredMmr
from storage.history.mmr_verify import ranges
from storage.mmr import Roots

CHUNK = 1024  # bits
NOTHING = b"\xf6"
Numbered = tuple[OutPoint, Coin | None, Moment]

# --- hashed from nothing -------------------------------------------------------------------------------------------


def h(number: int, *parts: bytes) -> bytes:
    return blake2b(pack(">Q", number) + b"".join(parts), digest_size=32).digest()


def range_root(leaves: Sequence[bytes]) -> tuple[int, bytes]:
    tops, begin, position = list[bytes](), 0, 0
    for height in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> height & 1:
            tops.append(_tree(tuple(leaves[begin : begin + (1 << height)]), position))
            begin, position = begin + (1 << height), position + (2 << height) - 1
    if not tops:
        return 0, bytes(32)
    root = tops.pop()
    while tops:
        root = h(position, tops.pop(), root)
    return position, root


@cache
def _tree(leaves: tuple[bytes, ...], position: int) -> bytes:
    """Return the top of a perfect tree whose first node is at `position`."""
    if len(leaves) == 1:
        return h(position, leaves[0])
    half = len(leaves) // 2
    left, right = _tree(leaves[:half], position), _tree(leaves[half:], position + 2 * half - 1)
    return h(position + 4 * half - 2, left, right)


# --- what the leaves are -------------------------------------------------------------------------------------------


def numbered(model: Model, upto: int) -> list[Numbered]:
    """Return every number in order: the outpoint, the output of it that can be spent, and the block."""
    found = list[Numbered]()
    coins, txs = model.moments[0].coins, dict[bytes, int]()
    for listed in model.genesis.outputs if model.genesis else []:
        txs[listed.txid] = max(txs.get(listed.txid, 0), listed.index)
    for txid, last in txs.items():
        if any(point[0] == txid for point in coins):
            found += [((txid, n), coins.get((txid, n)), model.moments[0]) for n in range(last + 1)]
    for ordinal, moment in enumerate(model.moments[1 : upto + 1], start=1):
        assert moment.block is not None
        for place, each in enumerate(moment.block.txs):
            kept = dict(made(each, ordinal, place))
            count = len(each.outputs) + (not each.valid and each.collateral_return is not None)
            found += [((each.txid, n), kept.get(n), moment) for n in range(max(count, 1))]
    return found


def leaf(point: OutPoint, coin: Coin, moment: Moment) -> bytes:
    out, at, address = coin.output, moment.point, coin.output.address
    owner = CODEC.credentials(address)
    datum = out.datum_hash or (out.inline_datum is not None and blake2b(out.inline_datum, digest_size=32).digest())
    record: dict[int, Any] = {
        0: address,
        1: out.value,
        2: [list(asset) for asset in out.assets] or None,
        3: datum or None,
        4: out.inline_datum,
        5: out.script_ref,
        6: out.script_ref_hash,
        7: coin.collateral_return,
        8: at.slot if at else 0,
        9: at.height if at else 0,
        10: at.hash if at else bytes(32),
        11: moment.block and moment.block.epoch,
        12: moment.block and moment.block.time,
        13: owner.payment,
        14: owner.stake,
        15: stake_address(address),
    }
    there = {key: value for key, value in record.items() if value is not None}
    raw: bytes = cbor2.dumps([list(point), there], canonical=True)
    return raw


def leaf_of(point: OutPoint, coin: Coin | None, moment: Moment) -> bytes:
    return NOTHING if coin is None else leaf(point, coin, moment)


def chunks(bits: Sequence[bool]) -> list[bytes]:
    """Return the leaves of the MMR over bits: the lowest bit of a byte is the first."""
    whole = [*bits, *[False] * (-len(bits) % CHUNK)]
    octets = [sum(bit << place for place, bit in enumerate(whole[at : at + 8])) for at in range(0, len(whole), 8)]
    return [bytes(octets[at : at + CHUNK // 8]) for at in range(0, len(octets), CHUNK // 8)]


# --- those of a store ----------------------------------------------------------------------------------------------


def mmr_of(chain: Chain) -> StoredMmr:
    assert chain.store.mmr is not None
    return chain.store.mmr


def roots_of(chain: Chain) -> Roots:
    with chain.store.disk.read() as txn:
        return mmr_of(chain).roots(txn)


def nodes_of(chain: Chain) -> list[dict[bytes, bytes]]:
    """Return the values of both tables."""
    return [rows(chain.store, name) for name in TABLES]


def wrong(chain: Chain) -> list[str]:
    """Return what `verify` finds in the MMR."""
    with chain.store.disk.read() as txn:
        return list(ranges(chain.store, txn))


@contextmanager
def prover(chain: Chain) -> Iterator[Callable[[OutPoint], MmrProof]]:
    with Query(chain.store, CODEC, "cardano").snapshot() as shot:
        yield lambda point: prove(shot, *point)


def proof_of(chain: Chain, point: OutPoint) -> MmrProof:
    with prover(chain) as proof:
        return proof(point)


def small_nodes(patch: pytest.MonkeyPatch, nodes: int = 7, most: int = 0) -> None:
    for module in (storage.history.mmr_nodes, storage.history.mmr):
        patch.setattr(module, "NODES", nodes)
        patch.setattr(module, "BIT_NODES", 2)
    patch.setattr("storage.history.mmr_thin.MOST", most)
