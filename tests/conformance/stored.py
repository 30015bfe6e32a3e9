"""What a store has of a transaction, in the words of the conformance cases, and what these set there by hand."""

from __future__ import annotations

from typing import Any

from conformance.faulty import Faults
from conformance.words import Op, Words
from stores import OnDisk

from handlers import spending
from storage.blobs import Files
from storage.disk import Txn
from storage.pool_layout import FROZEN, HASH, Page, Record, claimant

POKED = {  # a field of the cases → of a page
    "spentUtxos": "spent",
    "recordUtxos": "recorded",
    "totalUtxos": "total",
    "totalExtraRecs": "pages",
    "spentExtraRecs": "spent_pages",
    "deleteAtHeight": "delete_at",
    "preserveUntil": "preserve_until",
    "unminedSince": "unmined_since",
    "blockIDs": "block_ids",
    "blockHeights": "block_heights",
    "subtreeIdxs": "subtree_idxs",
    "spendingHeight": "spending_height",
    "isCoinbase": "is_coinbase",
    "createdAt": "created_at",
    "creating": "creating",
    "locked": "locked",
    "conflicting": "conflicting",
    "external": "external",
    "fee": "fee",
    "size": "size",
}


class Stored:
    """OnDisk, pages, locks and blobs as they are on disk."""

    def __init__(self, store: OnDisk, files: Files, words: Words, faults: Faults) -> None:
        self.store, self.files, self.words, self.faults = store, files, words, faults

    def record(self, name: str) -> Record | None:
        with self.store.disk.read() as txn:
            return self.store.record(txn, self.words.txid(name))

    def state(self, name: str) -> Op | None:
        """Return the fields of a master (`A`), or of a further page (`A#1`)."""
        name, _, number = name.partition("#")
        txid = self.words.txid(name)
        with self.store.disk.read() as txn:
            record = self.store.record(txn, txid)
            if number and int(number):
                page = self.store.page(txn, txid, int(number))
                return None if page is None else self._page(txn, txid, int(number), page, record)
            if record is None:
                return None
            state = self._page(txn, txid, 0, record, record)
            pages = sum(self.store.page(txn, txid, n) is not None for n in range(record.pages + 1))
            raw = self.store.body(txn, txid).raw
        return state | {
            "records": pages,
            "totalUtxos": record.total,
            "totalExtraRecs": record.pages,
            "spentExtraRecs": record.spent_pages,
            "external": record.external,
            "inlineData": raw is not None,
            "blob": self.blob(name),
            "lock": self.lock(name),
            "unminedSince": record.unmined_since,
            "preserveUntil": record.preserve_until,
            "blockIDs": [*record.block_ids],
            "blockHeights": [*record.block_heights],
            "subtreeIdxs": [*record.subtree_idxs],
            "createdAt": record.created_at,
            "conflictingChildren": [self.words.name(child) for child in record.conflicting_children] or None,
            "everHadCreating": txid in self.faults.seen_creating,
            "everHadLock": txid in self.faults.seen_locks,
        }

    def _page(self, txn: Txn, txid: bytes, number: int, page: Page, record: Record | None) -> Op:
        state: Op = {
            "recordUtxos": page.counted,
            "spentUtxos": page.spent,
            "creating": page.creating or None,
            "slots": self._slots(txn, txid, number, page),
            "deletedChildren": [self.words.name(child) for child in page.deleted_children] or None,
            "reassignments": [
                {"offset": it.slot, "oldHash": it.old_hash.hex(), "newHash": it.new_hash.hex(), "height": it.height}
                for it in page.reassignments
            ]
            or None,
            "spendableIn": {str(slot): height for slot, height in page.spendable_in.items()} or None,
        }
        if number:
            state["lastSpentState"] = "ALLSPENT" if page.all_spent else "NOTALLSPENT"
        if record is not None:
            state |= {
                "locked": record.locked,
                "conflicting": record.conflicting,
                "deleteAtHeight": record.delete_at,
                "spendingHeight": record.spending_height,
                "isCoinbase": record.is_coinbase,
                "fee": record.fee,
                "size": record.size,
            }
        return state

    def slots(self, name: str) -> list[str | None]:
        """Return what is said of all outputs of a transaction."""
        txid, slots = self.words.txid(name), list[str | None]()
        with self.store.disk.read() as txn:
            record = self.store.record(txn, txid)
            for number in range(record.pages + 1 if record else 0):
                page = self.store.page(txn, txid, number)
                slots += self._slots(txn, txid, number, page) if page else []
        return slots

    def _slots(self, txn: Txn, txid: bytes, number: int, page: Page) -> list[str | None]:
        rows = dict(self.store.slots(txn, txid, number))
        return [self._slot(rows.get(slot)) for slot in range(page.outputs)]

    def _slot(self, row: bytes | None) -> str | None:
        if row is None:
            return None
        if len(row) == HASH:
            return "unspent"
        return "frozen" if spending.frozen(row) else self.words.out(claimant(row))

    def blob(self, name: str) -> str | None:
        """Return of which kind a transaction's blob is."""
        files, txid = Files(self.files.root), self.words.txid(name).hex()
        return next((kind for kind in ("tx", "outputs") if files.get(f"{txid}.{kind}") is not None), None)

    def lock(self, name: str) -> Op | None:
        """Return who creates a transaction."""
        with self.store.disk.read() as txn:
            lock = self.store.lock(txn, self.words.txid(name))
        if lock is None:
            return None
        owner = self.words.owners.get(lock.owner, lock.owner.decode(errors="backslashreplace"))
        return {
            "owner": owner,
            "lockOwner": owner,
            "expectedRecs": lock.expected_records,
            "ttlSeconds": round(lock.expires_at - lock.created_at),
            "processId": lock.process_id,
            "hostname": lock.hostname,
        }


def poke(txn: Txn, store: OnDisk, words: Words, op: Op) -> None:
    txid, number, fields = words.txid(op["tx"]), op.get("rec", 0), op["fields"]
    page = store.page(txn, txid, number)
    assert page is not None
    for field, value in fields.items():
        if field == "deletedChildren":
            page.deleted_children = [words.txid(name) for name in value or []]
        elif field == "conflictingChildren" and isinstance(page, Record):
            page.conflicting_children = [words.txid(name) for name in value or []]
        elif field == "lastSpentState":
            continue  # nothing of ours: a page's state follows from its slots
        elif field == "slots":
            _poke_slots(txn, store, words, txid, number, value)
        elif field == "spendableIn":
            page.spendable_in = {int(slot): height for slot, height in value.items()}
        else:
            setattr(page, POKED[field], _poked(field, value))
    if isinstance(page, Record) and "blockIDs" in fields:
        page.main_ids = page.block_ids
        page.block_heights = (page.block_heights + (0,) * len(page.block_ids))[: len(page.block_ids)]
        page.subtree_idxs = (page.subtree_idxs + (0,) * len(page.block_ids))[: len(page.block_ids)]
    store.put_page(txn, txid, number, page)


def _poke_slots(txn: Txn, store: OnDisk, words: Words, txid: bytes, number: int, slots: list[str | None]) -> None:
    for slot, value in enumerate(slots):
        row = store.slot(txn, txid, number, slot)
        if value is None:
            store.drop_slot(txn, txid, number, slot)
        elif row is not None:
            end = b"" if value == "unspent" else FROZEN if value == "frozen" else words.by(value)
            store.put_slot(txn, txid, number, slot, row[:HASH] + end)


def _poked(field: str, value: Any) -> Any:
    if value is None and field in ("creating", "locked", "conflicting", "external", "isCoinbase"):
        return False
    if field in ("blockIDs", "blockHeights", "subtreeIdxs"):
        return tuple(value or ())
    return value
