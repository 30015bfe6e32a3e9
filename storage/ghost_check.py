"""The check of the ghosts on disk, for `utxod verify`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.disk import Txn
from storage.ghost_index import BY_ID, BY_PARENT
from storage.ghost_layout import Generation
from storage.ghosts import Ghosts


def findings(ghosts: Ghosts, txn: Txn) -> Iterator[str]:
    """Yield what is wrong.

    Raises:
        Damaged: a value can't be read.
    """
    end = end_spend = left = 0
    for generation in ghosts.generations(txn):
        if generation.first < end or generation.first_spend < end_spend:
            yield f"generation {generation.number} of the ghosts overlaps the one before it"
        end, end_spend, left = generation.end, generation.end_spend, left + generation.left
        yield from _generation(ghosts, txn, generation)
    if (there := ghosts.bits(txn)) != left:
        yield f"{there} transactions are marked as ghosts, but the generations count {left}"


def _generation(ghosts: Ghosts, txn: Txn, generation: Generation) -> Iterator[str]:
    name, left = f"generation {generation.number} of the ghosts", 0
    listed = {kind: ghosts.index.read(txn, generation.part(kind)) for kind in _KINDS}
    counts = dict.fromkeys(_KINDS, 0)
    for block in range(generation.blocks):
        ghosts.block(txn, generation.number, block)
    for records in ghosts.parts(txn, generation):
        spends = ghosts.spends_of(txn, records)
        if np.any(spends["spender"] != np.repeat(records["number"], records["spent"])):
            yield f"{name} has spends whose spender is not their transaction"
        for kind, some, ids in ((BY_ID, records, "id"), (BY_PARENT, spends, "parent")):
            counts[kind] += len(some)
            places, numbers = listed[kind].find(some[ids][:, 0])
            found = numbers[numbers == some["number"][places]]
            for number in np.setdiff1d(some["number"], found).tolist():
                yield f"{name}: the index of its {_KINDS[kind]} has no entry for number {number}"
        left += int(ghosts.live(txn, records["number"]).sum())
    for kind, entries in listed.items():
        if len(entries.numbers) != counts[kind]:
            yield f"{name}: the index of its {_KINDS[kind]} has {len(entries.numbers)} entries, expected {counts[kind]}"
        if np.any(entries.prefixes[1:] < entries.prefixes[:-1]):
            yield f"{name}: the index of its {_KINDS[kind]} is not in order"
    if left != generation.left:
        yield f"{name} has {left} ghosts, but its row counts {generation.left}"


_KINDS = {BY_ID: "transactions", BY_PARENT: "spends"}
