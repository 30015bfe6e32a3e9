"""Conversion of one block in Ogmios's format to one `BlockApplied`; pure decoding.

NOTE: some of what a chunk file has is not in the message. The ledger's sets come sorted, so inputs (since Shelley),
assets and datums may be in another order than in the block; a server that does not include the CBOR of transactions
does not say their size, and one that does not include that of scripts not how a native script was encoded; a script
reference comes in its shortest encoding; and the node writes an address of a bad pointer, or with bytes behind it, in
its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from feeds.cardano.block import FAR_AWAY
from feeds.cardano.details import read_details
from feeds.cardano.eras import ALONZO, NAMES, Network
from feeds.cardano.errors import BlockError
from feeds.cardano.ogmios_addresses import from_text
from feeds.cardano.ogmios_issuers import read_issuer
from feeds.cardano.ogmios_json import Block, Boundary, MessageError, Praos, unhex
from feeds.cardano.ogmios_json import Output as OgmiosOutput
from feeds.cardano.ogmios_json import Reference as OgmiosReference
from feeds.cardano.ogmios_json import Transaction as OgmiosTransaction
from feeds.cardano.ogmios_scripts import read_script
from handlers.events import Asset, BlockApplied, Details, OutPoint, Output, Tx

T = TypeVar("T")
U = TypeVar("U")
_MAX_AMOUNT = 2**64 - 1
_MAX_INDEX = 2**32 - 1
_GENESIS = "genesis"
_WITHOUT_FAILURES = frozenset(NAMES[:ALONZO])  # eras in which no transaction can fail and still be in a block
_FOUR_PARTS = "84"  # [body, witnesses, whether it is valid, metadata]
_TWO_PARTS = "82"  # of Byron
_WHOLE = (_TWO_PARTS, "83", _FOUR_PARTS)


def decode_block(block: Block, network: Network, before_slot: int | None = None) -> BlockApplied:
    """Return the content of a block. `before_slot` is that of the block before, None if there is none.

    It determines the slot of a boundary block, which opens the next epoch and has the slot of the first block after it.

    Raises:
        MessageError: something in it is not what it should be; the error names the place in the block.
    """
    if isinstance(block, Praos):
        slot, epoch, time = block.slot, network.epoch(block.slot), network.time(block.slot)
    else:
        if not isinstance(block, Boundary):
            slot = block.slot
        else:
            slot = 0 if before_slot is None else _next_epoch(before_slot, network)
        epoch = slot // network.byron_epoch_slots
        time = int(network.start + slot * network.byron_slot_s)
    if block.height > FAR_AWAY or slot > FAR_AWAY:
        raise MessageError(f"height {block.height} and slot {slot} are too large for a block", ".height")
    given = () if isinstance(block, Boundary) else block.transactions
    return BlockApplied(
        height=block.height,
        hash=unhex(block.id, ".id", 32),
        slot=slot,
        prev_hash=None if block.ancestor == _GENESIS else unhex(block.ancestor, ".ancestor", 32),
        time=time,
        epoch=epoch,
        era=block.era,
        size=None if isinstance(block, Boundary) or block.size is None else block.size.bytes,
        issuer=read_issuer(block.issuer) if isinstance(block, Praos) else None,
        txs=_each(lambda tx: _transaction(tx, block.era), given, ".transactions"),
    )


def _next_epoch(slot: int, network: Network) -> int:
    """Return the first slot of the epoch after that of a slot."""
    return (slot // network.byron_epoch_slots + 1) * network.byron_epoch_slots


def _transaction(given: OgmiosTransaction, era: str) -> Tx:
    valid = given.spends == "inputs"
    if not valid and era in _WITHOUT_FAILURES:
        raise MessageError(f"a transaction of {era} cannot spend its collateral", ".spends")
    if given.sub_transactions:
        raise MessageError("nested transactions are not supported", ".subTransactions")
    back = given.collateral_return
    return Tx(
        txid=unhex(given.id, ".id", 32),
        inputs=_outpoints(given.inputs, ".inputs"),
        outputs=_each(_output, given.outputs, ".outputs"),
        valid=valid,
        collateral=_outpoints(given.collaterals, ".collaterals"),
        references=_outpoints(given.references, ".references"),
        collateral_return=None if back is None else _at(".collateralReturn", _output, back),
        fee=None if given.fee is None else _amount(given.fee.ada.lovelace, ".fee.ada.lovelace"),
        size=None if given.cbor is None else _size(given.cbor),
        datums=[_datum(digest, datum) for digest, datum in given.datums.items()] if given.datums else [],
        details=None if given.cbor is None else _details(given.cbor),
    )


def _size(cbor: str) -> int | None:
    """Return the ledger's size: since Alonzo the byte for whether the transaction is valid does not count.

    NOTE: a server may send `cbor` of a Byron transaction twice; the last one counts, and includes the witnesses.
    """
    if cbor[:2] not in _WHOLE:
        raise MessageError("not a transaction", ".cbor")
    return len(cbor) // 2 - (cbor[:2] == _FOUR_PARTS)


def _details(cbor: str) -> Details:
    """Return counts and sums; transactions of Byron contain nothing that is counted."""
    if cbor.startswith(_TWO_PARTS):
        return Details()
    try:
        return read_details(unhex(cbor, ".cbor"))
    except BlockError as error:
        raise MessageError(str(error), ".cbor") from None


def _datum(digest: str, given: str) -> bytes:
    """Return a datum, which must have the hash that it is listed under: else it could never be found."""
    wanted, place = unhex(digest, ".datums[...]", 32), f".datums.{digest}"
    datum = unhex(given, place)
    if blake2b(datum, digest_size=32).digest() != wanted:
        raise MessageError("the datum does not match its hash", place)
    return datum


def _outpoints(given: Sequence[OgmiosReference], place: str) -> list[OutPoint]:
    """Return outpoints, each once."""
    found = _each(_outpoint, given, place)
    if len(found) > 1 and len(set(found)) != len(found):
        return list(dict.fromkeys(found))
    return found


def _outpoint(given: OgmiosReference) -> OutPoint:
    if given.index > _MAX_INDEX:
        raise MessageError(f"index {given.index} is too large", ".index")
    return unhex(given.transaction.id, ".transaction.id", 32), given.index


def _output(given: OgmiosOutput) -> Output:
    try:
        address = from_text(given.address)
    except ValueError as error:
        raise MessageError(str(error), ".address") from None
    value, assets = _value(given.value)
    if given.datum is None and given.script is None:
        if given.datum_hash is None:
            return Output(address, value, assets)
        return Output(address, value, assets, unhex(given.datum_hash, ".datumHash", 32))
    if given.datum_hash is not None and given.datum is not None:
        raise MessageError("an output has both a datum and a datum hash", ".datum")
    script, script_hash = (None, None) if given.script is None else _at(".script", read_script, given.script)
    return Output(
        address,
        value,
        assets,
        datum_hash=None if given.datum_hash is None else unhex(given.datum_hash, ".datumHash", 32),
        inline_datum=None if given.datum is None else unhex(given.datum, ".datum"),
        script_ref=script,
        script_ref_hash=script_hash,
    )


def _value(given: dict[str, dict[str, int]]) -> tuple[int, list[Asset]]:
    """Return coin and assets; an asset with quantity 0 is left out."""
    ada = given.get("ada")
    if ada is None or list(ada) != ["lovelace"]:
        raise MessageError("the value has no `ada` with only `lovelace` in it", ".value")
    assets: list[Asset] = []
    if len(given) > 1:
        for policy, names in given.items():
            if policy != "ada":
                _add_assets(policy, names, assets)
    return _amount(ada["lovelace"], ".value.ada.lovelace"), assets


def _add_assets(policy: str, names: dict[str, int], assets: list[Asset]) -> None:
    raw = unhex(policy, ".value[...]", 28)
    for name, quantity in names.items():
        key = unhex(name, f".value.{policy}[...]")
        if len(key) > 32:
            raise MessageError("an asset name has more than 32 bytes", f".value.{policy}[...]")
        if _amount(quantity, f".value.{policy}.{name}"):
            assets.append((raw, key, quantity))


def _amount(number: int, place: str) -> int:
    if not 0 <= number <= _MAX_AMOUNT:
        raise MessageError(f"{number} is not an amount", place)
    return number


def _each(read: Callable[[T], U], given: Sequence[T], place: str) -> list[U]:
    """Return what all are read as; an error names the one that it is about."""
    made: list[U] = []
    try:
        for each in given:
            made.append(read(each))  # noqa: PERF401 - the count is the position of an error
    except MessageError as error:
        raise error.inside(f"{place}[{len(made)}]") from None
    return made


def _at(place: str, read: Callable[[T], U], given: T) -> U:
    try:
        return read(given)
    except MessageError as error:
        raise error.inside(place) from None
