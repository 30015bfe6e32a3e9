"""The rules of spending and of deletion. Pure: records and slots are passed in, decisions are returned.

The order of the checks is part of the contract: the first that fails is what the caller gets. The master's flags
decide for every page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from handlers.refusal import Refusal, no_room
from storage.errors import StoreFull
from storage.pool_layout import FROZEN, HASH, HIGHEST, OutPoint, Page, Record, claimant

Code = str  # a name of the protocol, section 1.2

REASSIGN_DELAY = 1000  # blocks until a reassigned output may be spent
_UNSPENT = (b"", FROZEN)  # in place of a spender
_RETRYABLE = {"CREATING", "LOCKED", "STORAGE_ERROR", "FROZEN_UNTIL", "COINBASE_IMMATURE", "PENDING_FULL"}


class Rules(Struct, frozen=True):
    """The settings of transactions."""

    batch_size: int = 20_000
    retention: int = 288
    maturity: int = 100
    reassign_delay: int = REASSIGN_DELAY
    max_inline_bytes: int = 1 << 20
    externalize_all: bool = False
    max_pending_bytes: int = 0  # of submissions; 0 is no limit
    max_pending_count: int = 0
    max_pending_age_s: float = 0.0
    in_log_order: bool = False  # every replica of a stream decides the same


class Mined(Struct, frozen=True):
    """A block that a transaction is in."""

    block_id: int
    height: int
    subtree: int | None = None


class Fault(Struct, frozen=True):
    """Why one input can't be spent; `spender` holds it already."""

    code: Code
    spender: tuple[bytes, int] | None = None


class TxFault(Exception):
    """An operation on a transaction that can't be carried out: nothing was changed.

    `inputs` has the faults of inputs or outputs, by their number, and `outpoints` all outpoints; `detail` is for the
    sender of another fault.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        inputs: Mapping[int, Fault] | None = None,
        outpoints: Sequence[OutPoint] = (),
        detail: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.inputs, self.outpoints = code, message, inputs or {}, outpoints
        self.detail = dict(detail or {})

    def rival(self, txid: bytes) -> bytes | None:
        """Return the claimant of the first input that `txid` cannot spend; None unless all of those are claimed."""
        rivals = [fault.spender[0] for fault in self.inputs.values() if fault.code == "SPENT" and fault.spender]
        lost = self.code == "UTXO_ERROR" and len(rivals) == len(self.inputs) and txid not in rivals
        return rivals[0] if lost else None

    def refusal(self) -> Refusal:
        """Return the fault in the protocol's words."""
        if isinstance(self.__cause__, StoreFull):
            return no_room(self.__cause__)
        retryable = any(code in _RETRYABLE for code in (self.code, *(each.code for each in self.inputs.values())))
        entries: list[dict[str, object]] = []
        for n, fault in self.inputs.items():
            entries.append({"outpoint": self.outpoints[n], "code": fault.code})
            if fault.spender is not None:
                entries[-1]["spender"] = fault.spender
        return Refusal(self.code, self.message, retryable, detail={"inputs": entries} if entries else self.detail)


# --- spending ----------------------------------------------------------------------------------------------------


def record_fault(record: Record, height: int, ignore_locked: bool, ignore_conflicting: bool) -> Fault | None:
    """Return why nothing of this transaction may be spent at a height."""
    if record.creating:
        return Fault("CREATING")
    if record.conflicting and not ignore_conflicting:
        return Fault("CONFLICTING")
    if record.locked and not ignore_locked:
        return Fault("LOCKED")
    if record.spending_height is not None and record.spending_height > height:
        return Fault("COINBASE_IMMATURE")
    return None


def slot_fault(
    page: Page, slot: int, row: bytes | None, by: bytes, height: int, wanted: bytes | None = None
) -> Fault | None:
    """Return why `by` may not spend a slot; a slot that it has spent already is no fault.

    `wanted` is the expected hash of the output, if the caller has one.
    """
    if row is None:
        return Fault("UTXO_NOT_FOUND")
    if wanted is not None and row[:HASH] != wanted:
        return Fault("UTXO_HASH_MISMATCH")
    if page.spendable_in.get(slot, 0) > height:
        return Fault("FROZEN_UNTIL")
    if len(row) == HASH:
        return None
    if row[HASH:] == by:
        return Fault("INVALID_SPEND") if by[:HASH] in page.deleted_children else None
    if row[HASH:] == FROZEN:
        return Fault("FROZEN")
    return Fault("SPENT", claimant(row))


def spent(row: bytes | None) -> bool:
    """Return whether a slot is spent; a frozen one is not."""
    return row is not None and row[HASH:] not in _UNSPENT


def assign(record: Record, page: Page, had: bytes, by: bytes) -> None:
    """Count on its page, and the page on its master, that a slot is spent by `by`, frozen, or with nothing unspent.

    `had` is the same of before.
    """
    was = page is not record and page.all_spent
    page.spent += (by not in _UNSPENT) - (had not in _UNSPENT)
    recount(record, page, was)


def recount(record: Record, page: Page, was: bool) -> None:
    """Let a master count whether all of a page is spent, as it `was` or not before."""
    if page is not record and page.all_spent != was:
        record.spent_pages = (record.spent_pages or 0) + page.all_spent - was


def frozen(row: bytes) -> bool:
    """Return whether a slot is frozen."""
    return row[HASH:] == FROZEN


# --- being forgotten ---------------------------------------------------------------------------------------------


def settle(record: Record, height: int, retention: int) -> None:
    """Set or clear `delete_at` according to the rule.

    It is set when everything is spent and the transaction is mined on the longest chain, and then only ever raised; a
    conflicting transaction's is set once.
    """
    if retention == 0 or record.preserve_until is not None:
        return
    if record.conflicting:
        if record.delete_at is None:
            record.delete_at = min(height + retention, HIGHEST)
    elif record.mined and record.all_spent and (record.spent_pages or 0) == record.pages:
        record.delete_at = max(record.delete_at or 0, min(height + retention, HIGHEST))
    else:
        record.delete_at = None


# --- being mined -------------------------------------------------------------------------------------------------


def mine(
    record: Record, block_id: int, height: int, subtree: int | None, *, longest: bool, certain: bool = False
) -> None:
    """Enter a block, once by its id. Being mined ends a creation and unlocks.

    An existing entry is kept, unless the new one is `certain`, which means that the active chain has it.
    """
    if block_id not in record.block_ids:
        record.block_ids = (*record.block_ids, block_id)
        record.block_heights = (*record.block_heights, height)
        record.subtree_idxs = (*record.subtree_idxs, subtree)
    elif certain:
        n = record.block_ids.index(block_id)
        record.block_heights = (*record.block_heights[:n], height, *record.block_heights[n + 1 :])
        record.subtree_idxs = (*record.subtree_idxs[:n], subtree, *record.subtree_idxs[n + 1 :])
    if longest and block_id not in record.main_ids:
        record.main_ids = (*record.main_ids, block_id)
    if longest:
        record.unmined_since = None
    record.locked = record.locked_by_operator = record.creating = False


def unmine(record: Record, block_id: int, now: int) -> None:
    """Remove a block. With none of the longest chain left it is unmined, since when it was first known as that.

    `now` counts for what was never known as unmined.
    """
    if block_id in record.block_ids:
        at = record.block_ids.index(block_id)
        record.block_ids = record.block_ids[:at] + record.block_ids[at + 1 :]
        record.block_heights = record.block_heights[:at] + record.block_heights[at + 1 :]
        record.subtree_idxs = record.subtree_idxs[:at] + record.subtree_idxs[at + 1 :]
        record.main_ids = tuple([other for other in record.main_ids if other != block_id])
    if not record.main_ids and record.unmined_since is None:
        record.unmined_since = min(now, HIGHEST if record.born is None else record.born)
    record.locked = record.locked_by_operator = record.creating = False


def data_output(value: int, script: bytes) -> bool:
    """Return whether an output only carries data: it can't be spent, so no slot is kept of it."""
    return value == 0 and (script[:1] == b"\x6a" or script[:2] == b"\x00\x6a")


# --- order -------------------------------------------------------------------------------------------------------


def parents_first(transactions: Mapping[bytes, tuple[int, Sequence[OutPoint]]]) -> list[bytes]:
    """Return transactions, each with its time and what it spends, none before one that it spends; else older first."""
    order = dict[bytes, None]()
    begun = set[bytes]()  # placed, or put back until their parents are placed
    stack = sorted(transactions, key=lambda txid: (transactions[txid][0], txid), reverse=True)
    while stack:
        txid = stack.pop()
        waiting = [parent for parent, _ in transactions[txid][1] if parent in transactions and parent not in begun]
        if txid not in begun and waiting:
            stack += [txid, *dict.fromkeys(waiting)]
        else:
            order.setdefault(txid)
        begun.add(txid)
    return list(order)
