"""The place in a stream of events up to which a replica has applied the messages: one row, written by their commit."""

from __future__ import annotations

from msgspec import Struct

from storage.disk import Db, Txn
from storage.rows import open_row, seal_row

LOG_PLACE = b"log_place"  # in utxo_meta


class LogPlace(Struct, array_like=True, frozen=True):
    """A message of a stream; `stream` identifies the stream, whatever its name."""

    stream: str
    sequence: int
    id: str = ""  # of the message, which depends on all before it; "" where it was not stored yet


def read_log_place(txn: Txn, meta: Db) -> LogPlace | None:
    """Return the last message that was applied; None where no stream is followed."""
    raw = txn.get(LOG_PLACE, db=meta)
    return None if raw is None else open_row(LogPlace, raw, "the row log_place of utxo_meta")


def put_log_place(txn: Txn, meta: Db, place: LogPlace) -> None:
    """Store the last message that was applied."""
    txn.put(LOG_PLACE, seal_row(place), db=meta)
