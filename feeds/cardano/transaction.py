"""A standalone transaction, as wallets sign and nodes accept it: `[body, witnesses, valid, metadata]`."""

from __future__ import annotations

from feeds.cardano.details import details_of
from feeds.cardano.errors import BlockError
from feeds.cardano.shelley import read_body
from feeds.cardano.witnesses import revealed_by
from formats.cbor import CborError, close, fields, skip
from handlers.events import Tx

_FALSE, _TRUE = 0xF4, 0xF5


def read_transaction(raw: bytes) -> Tx:
    """Return a transaction, with its bytes.

    Raises:
        BlockError: the bytes are not a transaction.
    """
    try:
        count, at = fields(raw, 0, 3, 4, what="a transaction")
        body, at = read_body(raw, at)
        (datums, redeemers), at = revealed_by(raw, at)
        valid, flagged = True, raw[at] in (_FALSE, _TRUE)
        if flagged:
            valid, at = raw[at] == _TRUE, at + 1
        end = close(raw, skip(raw, at), count, "a transaction")
        txid, inputs, outputs, collateral, references, collateral_return, fee, others = body
        details = details_of(raw, others, redeemers)
    except IndexError:
        raise BlockError("the transaction is cut off", len(raw)) from None
    except CborError as error:
        raise BlockError.of(error) from None
    if end != len(raw):
        raise BlockError("the transaction does not end where its bytes do", min(end, len(raw)))
    return Tx(
        txid,
        inputs,
        outputs,
        valid,
        collateral,
        references,
        collateral_return,
        fee=fee,
        size=len(raw) - flagged,
        raw=raw,
        datums=datums,
        details=details,
    )
