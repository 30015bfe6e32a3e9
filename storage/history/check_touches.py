"""The check of the index of touches against outputs and undo logs, block by block; with it nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterator

from storage.history import touches
from storage.history.tally import Sink
from storage.history.view import View


def check_touches(view: View, sink: Sink) -> Iterator[str]:
    """Report what each block has touched; from the first block of the history on, everything of a block is there."""
    first, stored = touches.first_block(view.txn, view.meta), view.stored
    if first is None:
        yield "the index history is kept, but its first block is not recorded"
        return
    for ordinal, block in view.blocks():
        entries = touches.of_block(stored, ordinal, block)
        sink.expect(entries["prefix"].copy(), entries["number"].copy())
        if ordinal < first:
            continue
        found = stored.txs.span(block.first, block.first + block.numbers)
        txs = sum(int(view.counted(records).sum()) for records, _ in found)
        if txs != block.txs:
            yield f"block {ordinal} has {block.txs} transactions, but the history has {txs}"
        outputs = len(stored.outputs.within(block.first, block.first + block.numbers))
        if outputs != block.created:
            yield f"block {ordinal} created {block.created} outputs, but the history has {outputs}"
        spends = len(stored.log(ordinal))
        if ordinal and spends != block.spent:
            yield f"block {ordinal} spent {block.spent} outputs, but its undo log has {spends}"
