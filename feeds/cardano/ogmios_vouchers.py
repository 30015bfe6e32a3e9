"""The removal of vouchers (see `avvm`) on a chain that may roll back."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from feeds.cardano.addresses import is_redeem
from feeds.cardano.avvm import BEFORE_ALLEGRA, Vouchers
from handlers.events import BlockApplied, GenesisOutput, OutPoint, Tx


class VoucherHistory:
    """The vouchers that are unspent at a block, with the data to determine them at an earlier one.

    That is little: of all blocks before Allegra only the transactions that ever moved one, some thousands on mainnet.
    """

    def __init__(self, genesis: Sequence[GenesisOutput] = ()) -> None:
        self._genesis = genesis
        self._ever: set[OutPoint] = {
            (each.txid, each.index) for each in genesis if is_redeem(each.output.address)
        }  # also those of blocks that were rolled back: what is too much here only is remembered for nothing
        self._start()

    def _start(self) -> None:
        self._vouchers = Vouchers(self._genesis)
        self._moves: list[BlockApplied] = []
        self._began: BlockApplied | None = None
        self._over: int | None = None  # the slot of the block in which they ended

    def follow(self, block: BlockApplied) -> BlockApplied:
        """Take the next block into account; return it, at the boundary with what ends there."""
        if self._over is None:
            if block.era in BEFORE_ALLEGRA:
                self._remember(block)
            else:
                self._over = block.slot
        return self._vouchers.follow(block)

    def _remember(self, block: BlockApplied) -> None:
        self._began = self._began or replace(block, txs=[])
        moving = [tx for tx in block.txs if self._moves_some(tx)]
        if moving:
            self._moves.append(replace(block, txs=moving))

    def _moves_some(self, tx: Tx) -> bool:
        made = [(tx.txid, index) for index, output in enumerate(tx.outputs) if is_redeem(output.address)]
        self._ever.update(made)
        return bool(made) or not self._ever.isdisjoint(tx.inputs)

    def back_to(self, slot: int | None, block_hash: bytes | None) -> None:
        """Remove the blocks after a point; without a slot, all of them."""
        if slot is None:
            self._start()
        elif self._over is None or slot < self._over:
            moves = [each for each in self._moves if (each.slot or 0) < slot or each.hash == block_hash]
            began = self._began
            self._start()
            for block in [] if began is None else [began, *moves]:
                self.follow(block)
