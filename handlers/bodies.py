"""Outputs of messages in the form that the records of transactions hash."""

from __future__ import annotations

from collections.abc import Iterable

from handlers import spending
from handlers.events import Output, Tx
from storage.pool_layout import NO_NAME, output_hash
from storage.rows import Body, pack


def body(output: Output, *, collateral_return: bool = False) -> bytes:
    """Return an output's bytes: a plain one is its address and value."""
    if (
        output.datum_hash is None
        and output.inline_datum is None
        and output.script_ref is None
        and output.script_ref_hash is None
        and not output.assets
        and not collateral_return
    ):
        return pack((output.address, output.value))
    return pack(
        Body(
            output.address,
            output.value,
            output.assets,
            output.datum_hash,
            output.inline_datum,
            output.script_ref,
            output.script_ref_hash,
            collateral_return,
        )
    )


def names(txid: bytes, outputs: Iterable[Output], first: int = 0) -> list[bytes]:
    """Return the names of outputs, the first of which has a number; unspendable ones have none."""
    return [
        output_hash(txid, index, body(output)) if output.spendable and (output.value or kept(output)) else NO_NAME
        for index, output in enumerate(outputs, first)
    ]


def returned(tx: Tx) -> Output | None:
    """Return what a transaction that failed phase 2 creates; unspendable outputs are never stored."""
    back = tx.collateral_return
    return back if back is not None and back.spendable else None


def kept(output: Output) -> bool:
    """Return whether an output gets a slot: what only carries data can never be spent."""
    return output.spendable and not spending.data_output(output.value, output.address)
