"""Removal of vouchers: the first block of Allegra removed all unspent outputs at Byron redeem addresses.

No transaction does so, and the set is changed only by transactions. So the source adds one: the first block of Allegra
(or of a later era, on a chain that never had it) gets a synthetic first transaction that spends those outputs and
creates nothing. It comes first because no transaction of that block can spend them. A rollback needs no special rule:
the spends belong to the block. The id of the transaction is a hash of the block's hash, so it is the same at each read.

To find the unspent vouchers, the source tracks the outputs at redeem addresses, from genesis or from transactions,
through Byron and Shelley. If it begins in the middle of the chain, an output that was spent earlier may be named too: a
missing input, which the set counts and skips.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from msgspec.structs import replace

from feeds.cardano.addresses import is_redeem
from feeds.cardano.eras import ALLEGRA, NAMES
from handlers.events import BlockApplied, GenesisOutput, OutPoint, Tx

BEFORE_ALLEGRA = frozenset(NAMES[:ALLEGRA])


class Vouchers:
    """The unspent outputs at redeem addresses, until they return to the reserves."""

    def __init__(self, genesis: Iterable[GenesisOutput] = ()) -> None:
        self._live: dict[OutPoint, None] | None = {
            (each.txid, each.index): None for each in genesis if is_redeem(each.output.address)
        }
        self._began = False

    def follow(self, block: BlockApplied) -> BlockApplied:
        """Take the next block of the chain into account; return it, at the boundary with what ends there.

        A chain that is first seen after the boundary has it behind, unless this is its very first block.
        """
        if self._live is None:
            return block
        if block.era in BEFORE_ALLEGRA:
            self._began = True
            _move(self._live, block)
            return block
        live, self._live = self._live, None
        if not live or not (self._began or block.prev_hash is None):
            return block
        txid = blake2b(b"redeem outputs return to the reserves" + block.hash, digest_size=32).digest()
        return replace(block, txs=[Tx(txid, list(live)), *block.txs])


def _move(live: dict[OutPoint, None], block: BlockApplied) -> None:
    for tx in block.txs:
        if live:
            for outpoint in tx.inputs:
                live.pop(outpoint, None)
        for index, output in enumerate(tx.outputs):
            if is_redeem(output.address):
                live[tx.txid, index] = None
