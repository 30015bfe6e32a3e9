"""The layout of the rows of `storage.pool`, of their keys, and of claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import starmap
from operator import attrgetter
from struct import Struct as Packed

from msgspec import Struct

from storage import keys
from storage.errors import Damaged
from storage.reassigned import Reassignment
from storage.rows import SUM_BYTES, is_whole

BODY_PAGE, LOCK_PAGE = 0xFFFF_FFFE, 0xFFFF_FFFF
BODY, LOCK = keys.u32(BODY_PAGE), keys.u32(LOCK_PAGE)
INLINE = 64  # outputs, and inputs, that are in the record itself
PART = 400  # names in a row
HASH, CLAIM = 32, 36  # bytes
FROZEN = b"\xff" * CLAIM
NO_NAME = bytes(HASH)  # of an unspendable output
HIGHEST = keys.HIGHEST
_MOST_INPUTS = 1 << 24  # of a transaction: its block would not fit into a message
ALL_IN_ONE = keys.LAST_U32  # the page size of a record that is one page, however many outputs it has
_OUTPUT = Packed(">32sI")
claim_key = Packed(">32sII").pack  # of a transaction, a page and a slot
_pack_outpoint, _pack_number = _OUTPUT.pack, Packed("<I").pack
_NO_HASH = blake2b(digest_size=HASH)

OutPoint = tuple[bytes, int]
NOTHING: OutPoint = NO_NAME, keys.LAST_U32  # in place of an input that was missing, or listed twice
Place = tuple[bytes, int, int]  # a transaction, a page of it, and a slot there


class Page(Struct, array_like=True):
    """The state of some of a transaction's outputs, in the terms of the data model.

    `recorded` slots have a name. `spent` of them are spent. `deleted_children` spent outputs of this page and are
    pruned.
    """

    outputs: int
    recorded: int
    spent: int = 0
    creating: bool = False
    deleted_children: list[bytes] = []
    reassignments: tuple[Reassignment, ...] = ()
    spendable_in: dict[int, int] = {}

    @property
    def all_spent(self) -> bool:
        """Return whether nothing on this page can be spent any more."""
        return self.spent == self.counted

    @property
    def counted(self) -> int:
        """Return `recordUtxos`: each reassignment adds one, until a block of the active chain has spent the output."""
        return self.recorded + sum([not each.spent for each in self.reassignments])


class Record(Page, array_like=True):
    """The master: page 0, and the whole transaction's state. Its flags decide for every page.

    `born` is the height at which the transaction was first known as unmined; it outlives being mined. `main_ids` are
    those of its blocks that are on the longest chain: with none of them left it is unmined again. `locked_by_operator`
    distinguishes an operator's lock from that of a submission, which ends at a restart; it implies `locked`.
    `submission` is its number while it waits as a submission, `weight` about the bytes that it takes then. `names` are
    the hashes of the outputs and `packed` the inputs, where these are few; with `apart` it has a row for what is
    long.
    """

    total: int = 0
    page_size: int = ALL_IN_ONE
    pages: int = 0  # next to this one
    spent_pages: int | None = None
    is_coinbase: bool = False
    external: bool = False
    partial: bool = False
    locked: bool = False
    conflicting: bool = False
    born: int | None = None
    created_at: int = 0  # milliseconds
    unmined_since: int | None = None
    preserve_until: int | None = None
    delete_at: int | None = None
    spending_height: int | None = None
    block_ids: tuple[int, ...] = ()
    block_heights: tuple[int, ...] = ()
    subtree_idxs: tuple[int | None, ...] = ()
    main_ids: tuple[int, ...] = ()
    conflicting_children: list[bytes] = []
    fee: int | None = None
    size: int | None = None
    locked_by_operator: bool = False
    version: int | None = None
    lock_time: int | None = None
    submission: int | None = None
    weight: int = 0
    names: bytes = b""
    packed: bytes = b""
    apart: bool = False

    @property
    def mined(self) -> bool:
        """Return whether it is in a block of the longest chain."""
        return self.unmined_since is None and bool(self.block_ids)

    @property
    def inline(self) -> bool:
        """Return whether the names of its outputs are in the record."""
        return self.pages == 0 and self.total <= INLINE

    def count(self, slots: dict[int, bytes]) -> None:
        """Let a record of one page count these slots."""
        self.recorded = len(slots)
        self.spent = sum(len(row) > HASH and row[HASH:] != FROZEN for row in slots.values())
        self.total = self.outputs = max(self.total, max(slots, default=-1) + 1)

    def place(self, index: int) -> tuple[int, int]:
        """Return the page and the slot of an output."""
        return divmod(index, self.page_size)


INDEXED = "delete_at", "unmined_since", "preserve_until"  # the fields of a record by which there is an index
Indexed = tuple[int | None, int | None, int | None, int | None, int]  # these, its number as a submission, its weight
indexed: Callable[[Record], Indexed] = attrgetter(*INDEXED, "submission", "weight")
NOWHERE: Indexed = None, None, None, None, 0


class Body(Struct, array_like=True, frozen=True):
    """What does not change: what the transaction spends, and its bytes when they are kept here.

    `previous` has value and script of what each input spends, as the sender knew it.
    """

    inputs: list[OutPoint]
    raw: bytes | None = None
    previous: list[tuple[int, bytes] | None] | None = None


class Apart(Struct, array_like=True, frozen=True):
    """The row for what is long: the inputs if the record does not have them."""

    packed: bytes | None
    raw: bytes | None
    previous: list[tuple[int, bytes] | None] | None


class Lock(Struct, array_like=True, frozen=True):
    """Who creates a transaction page by page, and until when no one else may."""

    owner: bytes
    created_at: float
    expires_at: float
    process_id: int
    hostname: str
    expected_records: int


def in_order(spent: list[tuple[int, OutPoint]]) -> list[OutPoint]:
    """Return outpoints at the places of their inputs.

    Raises:
        Damaged: the index exceeds that of any transaction.
    """
    if not spent:
        return []
    last = max(spent)[0]
    if last >= _MOST_INPUTS:
        raise Damaged(f"output {spent[0][1][0].hex()}#{spent[0][1][1]} or another was spent by input {last}")
    inputs = [NOTHING] * (last + 1)
    for at, outpoint in spent:
        inputs[at] = outpoint
    return inputs


def claim(txid: bytes, input_index: int) -> bytes:
    """Return the 36 bytes that name a spender: the same transaction at another input is another spender."""
    return txid + _pack_number(input_index)


def open_claim(key: bytes, raw: bytes) -> bytes:
    """Return the claim in a row.

    Raises:
        Damaged: it is not as it was written.
    """
    if not is_whole(raw):  # there are many, and most are: their names are made for the few
        raise Damaged(f"the claim {key.hex()} does not have the checksum that was written with it")
    return raw[:-SUM_BYTES]


def claimant(row: bytes) -> tuple[bytes, int]:
    """Return the spender in a spent slot."""
    return row[HASH : HASH + 32], int.from_bytes(row[HASH + 32 : HASH + CLAIM], "little")


def output_hash(txid: bytes, index: int, body: bytes) -> bytes:
    """Return an output's name: a commitment to where it is and what the UTXO store keeps of it."""
    made = _NO_HASH.copy()  # in half the time of a new one
    made.update(_pack_outpoint(txid, index) + body)
    return made.digest()


def outpoints(packed: bytes) -> list[OutPoint]:
    """Return what inputs spend."""
    return list(_OUTPUT.iter_unpack(packed))


def pack_outpoints(inputs: Iterable[OutPoint]) -> bytes:
    """Return what inputs spend, as rows have it."""
    return b"".join(starmap(_pack_outpoint, inputs))
