"""Messages of an Ogmios server, v6 and v7: the parts of its answers that the set of outputs depends on.

The types are the check: a kind of block, an era, a way to spend, a clause, a field of a block, transaction or output
that is not listed here is an error that names the place. What is listed but has no bearing on outputs (signatures,
metadata, certificates) is `Skipped`. Numbers are exact at any size; hashes and the like are still text here.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from feeds.cardano.nesting import TooDeep, thoroughly
from feeds.errors import SourceError

T = TypeVar("T")
Natural = Annotated[int, Meta(ge=0)]
Origin = Literal["origin"]
Skipped = msgspec.Raw
_MOST_SHOWN = 300


class MessageError(SourceError):
    """An answer, or a part of it, is not understood; `place` is that part."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what, place)
        self.what, self.place = what, place

    def __str__(self) -> str:
        """Return what is wrong and where."""
        return f"{self.what} - at `${self.place}`" if self.place else self.what

    def inside(self, place: str) -> MessageError:
        """Return the same error, its place being part of another."""
        return MessageError(self.what, place + self.place)


def unhex(text: str, place: str, size: int | None = None) -> bytes:
    """Return bytes that are written as hex, of a given length if there is one."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        raise MessageError("not hex", place) from None
    if len(found) * 2 != len(text):
        raise MessageError("not hex", place)
    if size is not None and len(found) != size:
        raise MessageError(f"{len(found)} bytes, expected {size}", place)
    return found


class At(Struct, frozen=True, gc=False):
    """A point of the chain."""

    slot: Natural
    id: str


class Tip(Struct, frozen=True, gc=False):
    """The newest block of the server's node."""

    slot: Natural
    id: str
    height: Natural


# --- blocks ------------------------------------------------------------------------------------------------------


class Id(Struct, frozen=True, gc=False):
    """A transaction, by its id."""

    id: str


class Reference(Struct, frozen=True, gc=False):
    """An output, by its transaction and its index there."""

    transaction: Id
    index: Natural


class Lovelace(Struct, frozen=True, gc=False):
    """An amount."""

    lovelace: Natural


class Ada(Struct, frozen=True, gc=False):
    """An amount, as everywhere but in outputs."""

    ada: Lovelace


class Signature(Struct, frozen=True, gc=False, tag_field="clause", tag="signature", forbid_unknown_fields=True):
    """The holder of a key must sign."""

    key: str = field(name="from")


class AllOf(Struct, frozen=True, tag_field="clause", tag="all", forbid_unknown_fields=True):
    """All of some clauses."""

    clauses: list[Clause] = field(name="from")


class AnyOf(Struct, frozen=True, tag_field="clause", tag="any", forbid_unknown_fields=True):
    """One of some clauses."""

    clauses: list[Clause] = field(name="from")


class SomeOf(Struct, frozen=True, tag_field="clause", tag="some", forbid_unknown_fields=True):
    """At least a number of some clauses."""

    at_least: int = field(name="atLeast")
    clauses: list[Clause] = field(name="from")


class Before(Struct, frozen=True, gc=False, tag_field="clause", tag="before", forbid_unknown_fields=True):
    """Until a slot."""

    slot: Natural


class After(Struct, frozen=True, gc=False, tag_field="clause", tag="after", forbid_unknown_fields=True):
    """From a slot on."""

    slot: Natural


Clause = Signature | AllOf | AnyOf | SomeOf | Before | After


class Script(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A script that an output carries; one of the machine only as `cbor`, a native one with `json` and maybe both."""

    language: Literal["native", "plutus:v1", "plutus:v2", "plutus:v3"]
    json: Clause | None = None
    cbor: str | None = None


class Output(Struct, frozen=True, gc=False, rename="camel", forbid_unknown_fields=True):
    """What a transaction creates. An unknown field might change its meaning."""

    address: str
    value: dict[str, dict[str, int]]
    datum_hash: str | None = None
    datum: str | None = None
    script: Script | None = None


class TransactionFields(Struct, frozen=True, gc=False, rename="camel", forbid_unknown_fields=True):
    """Other fields of a transaction, in the eras that are listed below.

    None of it makes an output or ends one: `total_collateral` follows from what is spent and returned, `mint` shows in
    the outputs, `withdrawals`, `credits` and `proposals` move what accounts have, and the others are conditions,
    proofs, votes and notes. Any other field might.
    """

    total_collateral: Skipped = Skipped()
    mint: Skipped = Skipped()
    certificates: Skipped = Skipped()
    withdrawals: Skipped = Skipped()
    treasury: Skipped = Skipped()
    proposals: Skipped = Skipped()
    votes: Skipped = Skipped()
    network: Skipped = Skipped()
    validity_interval: Skipped = Skipped()
    metadata: Skipped = Skipped()
    script_integrity_hash: Skipped = Skipped()
    required_extra_signatories: Skipped = Skipped()
    required_extra_scripts: Skipped = Skipped()
    signatories: Skipped = Skipped()
    scripts: Skipped = Skipped()
    redeemers: Skipped = Skipped()
    credits: Skipped = Skipped()  # this and the next two since v7
    guards: Skipped = Skipped()
    account_balance_intervals: Skipped = Skipped()


class Transaction(TransactionFields, frozen=True, gc=False, kw_only=True):
    """One transaction."""

    id: str
    spends: Literal["inputs", "collaterals"]
    inputs: list[Reference]
    outputs: list[Output] = []
    collaterals: list[Reference] = []
    references: list[Reference] = []
    collateral_return: Output | None = None
    fee: Ada | None = None
    cbor: str | None = None
    datums: dict[str, str] | None = None  # by hash
    sub_transactions: list[msgspec.Raw] = []


class BlockSize(Struct, frozen=True, gc=False):
    """How large a block is."""

    bytes: Natural


class Boundary(Struct, frozen=True, gc=False, tag_field="type", tag="ebb", forbid_unknown_fields=True):
    """Byron's first block of an epoch: nothing but a hash. It has no slot, and the height of the block before."""

    era: Literal["byron"]
    id: str
    ancestor: str
    height: Natural


class _Block(Struct, frozen=True, gc=False, rename="camel", tag_field="type", forbid_unknown_fields=True):
    id: str
    ancestor: str
    height: Natural
    slot: Natural
    transactions: list[Transaction] = []
    size: BlockSize | None = None
    protocol: Skipped = Skipped()
    issuer: msgspec.Raw = msgspec.Raw(b"null")


class Byron(_Block, frozen=True, gc=False, kw_only=True, tag="bft"):
    """A block of Byron."""

    era: Literal["byron"]
    delegate: Skipped = Skipped()
    operational_certificates: Skipped = Skipped()


class Praos(_Block, frozen=True, gc=False, kw_only=True, tag="praos"):
    """A block since Shelley."""

    era: Literal["shelley", "allegra", "mary", "alonzo", "babbage", "conway"]
    nonce: Skipped = Skipped()


Block = Boundary | Byron | Praos


# --- answers -----------------------------------------------------------------------------------------------------


class Found(Struct, frozen=True, gc=False):
    """The newest of the requested points that is on the server's chain."""

    intersection: At | Origin
    tip: Tip | Origin


class Forward(Struct, frozen=True, gc=False, tag_field="direction", tag="forward"):
    """The chain continues."""

    block: Block
    tip: Tip | Origin


class Backward(Struct, frozen=True, gc=False, tag_field="direction", tag="backward"):
    """The chain was rolled back to a point; also the first answer after an intersection, which it repeats."""

    point: At | Origin
    tip: Tip | Origin


class Fault(Struct, frozen=True):
    """The error, if there is no result."""

    code: int
    message: str = ""
    data: object = None


class _Answer(Struct, Generic[T], frozen=True):
    id: object = None
    result: T | None = None
    error: Fault | None = None


FOUND = msgspec.json.Decoder(_Answer[Found])
NEXT = msgspec.json.Decoder(_Answer[Forward | Backward])


class ServerFault(SourceError):
    """The server answers with an error."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{in_a_line(fault.message) or 'an error'} (code {fault.code})")
        self.fault = fault


def read(decoder: msgspec.json.Decoder[_Answer[T]], raw: bytes, number: int) -> T:
    """Return the result in the answer to request `number`.

    Raises:
        ServerFault: it is an error.
        MessageError: it is not a valid answer to this request.
    """
    try:
        answer = thoroughly(decoder.decode, raw)
    except (msgspec.DecodeError, UnicodeDecodeError, TooDeep) as error:
        raise MessageError(in_a_line(str(error))) from None
    if answer.error is not None:
        raise ServerFault(answer.error)
    if answer.id not in (None, number):
        raise MessageError(f"this is the answer to request {in_a_line(repr(answer.id))}, expected {number}", ".id")
    if answer.result is None:
        raise MessageError("the answer has neither result nor error; this feed needs Ogmios 6 or later")
    return answer.result


class _Named(Struct):
    id: object = None
    height: object = None


class _WithBlock(Struct):
    block: _Named | None = None


_NAMED = msgspec.json.Decoder(_Answer[_WithBlock])


def name_of(raw: bytes) -> str:
    """Return which block an answer that is not understood is about, as far as it reports it."""
    try:
        result = _NAMED.decode(raw).result
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        result = None
    if result is None or result.block is None:
        return "an answer"
    return f"block {in_a_line(str(result.block.height))} {in_a_line(str(result.block.id))}"


def in_a_line(text: str) -> str:
    """Return foreign text as part of a line: where it is too long, its beginning and its end."""
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 2 :]}"
