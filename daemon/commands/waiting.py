"""`utxod query txs`: unmined transactions, with or without a running daemon."""

from __future__ import annotations

from rich.table import Table

from config.settings import Config
from daemon.commands.common import FAILED, Exit, pipe_may_close, show
from daemon.commands.lookup import print_json, querying
from daemon.store import reading
from handlers.answers import to_tip
from handlers.waiting import MOST_EXAMINED, Order, Status, TooMuchToExamine, WaitingList, cut, resumed


def txs(config: Config, status: Status, order: Order, count: int, cursor: str | None, *, as_json: bool) -> None:
    """Print a page of the transactions that wait, or have lost a conflict."""
    if not config.transactions.enabled:
        raise Exit("the transaction store is not enabled (transactions.enabled)", FAILED)
    with querying(config) as shot:
        walk, tip = WaitingList(reading(shot.store, config).view(shot.txn), status, order), shot.tip()
        after = None if cursor is None else resumed(cursor, status, order)
        try:
            for _ in walk.search(after, 0, count, MOST_EXAMINED):
                pass
        except TooMuchToExamine as error:
            raise Exit(f"{error}; use --order age, which has no such limit", FAILED) from error
        found = walk.waiting()
    more = None if walk.next is None else cut(status, order, walk.next)
    if as_json:
        print_json({"tip": tip and to_tip(tip), "transactions": found, "next_cursor": more})
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("since", "transaction", "inputs", "outputs", "fee", "size", "locked"):
        table.add_column(column, justify="left" if column in ("transaction", "locked") else "right", no_wrap=True)
    for tx in found:
        numbers = (len(tx.tx_inpoints), tx.total_utxos, tx.fee, tx.size_in_bytes)
        texts = ["" if number is None else f"{number:,}" for number in numbers]
        table.add_row(f"{tx.unmined_since:,}", tx.txid, *texts, "yes" if tx.locked else "")
    with pipe_may_close():
        show(table, *([] if more is None else [f"there may be more: --cursor {more}"]))
