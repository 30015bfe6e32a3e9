"""The transactions that affected an address or locking script: those that pay to it, and those that spend from it.

The index `history` has an entry for each, from the prefix of the address's key to the number of the transaction, once.
Nothing is dropped from it. While it is kept, all bodies, transactions and undo logs stay: it can be built from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Packed

import numpy as np

from storage.disk import Db, Txn
from storage.history.batch import Batch, Spends
from storage.history.layout import ENTRY, Block, Numbers, Records, Words, meta_row, outputs_in, put_meta_row
from storage.history.output_keys import RULES
from storage.history.stored import Stored

KIND = "history"
FROM = b"history_from"  # in utxo_meta: the first block of which every touch is known
_U32 = Packed(">I")


def digests(addresses: Sequence[bytes]) -> Words:
    """Return the keys of addresses."""
    return RULES["address_hash"].of_outputs(addresses, {})[0]


def touches(prefixes: Words, txs: Numbers) -> Records:
    """Return the entries of these touches, by prefix and then transaction, each once."""
    order = np.lexsort((txs, prefixes))
    entries = np.empty(len(order), ENTRY)
    entries["prefix"], entries["number"] = prefixes[order], txs[order]
    new = (entries["prefix"][1:] != entries["prefix"][:-1]) | (entries["number"][1:] != entries["number"][:-1])
    fresh: Records = entries[np.concatenate((np.ones(min(len(order), 1), np.bool_), new))]
    return fresh


def of_batch(made: Batch, spends: Spends, old: list[bytes]) -> tuple[list[bytes], Numbers]:
    """Return each touch of a batch as address and transaction; `old` are the addresses of older outputs it spends."""
    paid, own = np.flatnonzero(made.spendable), spends.numbers >= made.first_number
    places = np.concatenate((paid, np.searchsorted(made.numbers, spends.numbers[own])))
    payers, spenders = np.repeat(made.first, made.outputs_of)[paid], made.first[spends.spender]
    return [made.addresses[at] for at in places.tolist()] + old, np.concatenate((payers, spenders[own], spenders[~own]))


def of_block(stored: Stored, ordinal: int, block: Block) -> Records:
    """Return the entries of one block, as far as its outputs, and what it spent, are still there."""
    paid = stored.outputs.within(block.first, block.first + block.numbers)
    payers = np.full(len(paid), -1)
    for which, records, _ in stored.txs.many(paid, before=True):
        inside = paid[which] - records["number"] < outputs_in(records["counts"])
        payers[which] = np.where(inside, records["number"], -1)
    paid, payers = paid[payers >= 0], payers[payers >= 0]  # some from before the index began have none
    log = stored.log(ordinal)
    numbers = np.unique(log["number"])
    found = stored.bodies(numbers)
    spends = [(found[number].address, at) for at, number in enumerate(log["number"].tolist()) if number in found]
    spenders = block.first + log["spender"][np.array([at for _, at in spends], np.int64)].astype(np.int64)
    bodies = stored.bodies(paid)
    addresses = [bodies[number].address for number in paid.tolist()] + [address for address, _ in spends]
    return touches(stored.prefixes(digests(addresses)), np.concatenate((payers, spenders)))


def first_block(txn: Txn, meta: Db) -> int | None:
    """Return the first block of which every touch is known, None where the index is not kept."""
    raw = meta_row(txn, meta, FROM)
    return None if raw is None else int(_U32.unpack(raw)[0])


def put_first_block(txn: Txn, meta: Db, ordinal: int) -> None:
    """Store the first block from which every touch is indexed."""
    put_meta_row(txn, meta, FROM, _U32.pack(ordinal))
