"""The check of the positions of transactions in their blocks, which the store of a shard has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.history.layout import SHARD_TX_RECORD
from storage.history.shard import tx_record
from storage.history.view import View

_NAMED = 20


def check_places(view: View) -> Iterator[str]:
    """Positions in the whole block ascend with the numbers of transactions."""
    if tx_record(view.txn, view.meta) != SHARD_TX_RECORD:
        return
    last = np.empty(0, SHARD_TX_RECORD)
    for records in view.txs():
        some = np.concatenate((last, records))
        before, after = some[:-1], some[1:]
        wrong = (before["block"] == after["block"]) & (before["place"] >= after["place"])
        for at in np.flatnonzero(wrong)[:_NAMED].tolist():
            where = f"position {after['place'][at]} in block {after['block'][at]}"
            yield f"the transaction at number {after['number'][at]} has {where}, not after the one before it"
        last = records[-1:]
