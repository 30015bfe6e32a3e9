"""Conversion of one block of a chunk file, `[era, block]`, to one `BlockApplied`."""

from __future__ import annotations

from hashlib import blake2b

from feeds.cardano import byron, headers, shelley
from feeds.cardano.details import details_of
from feeds.cardano.eras import ALONZO, BYRON, BYRON_BOUNDARY, CONWAY, NAMES, Network
from feeds.cardano.errors import BlockError, CutShort
from feeds.cardano.witnesses import Revealed, read_witnesses
from formats.cbor import BREAK, CborError, array, close, fields, mapping, skip, uint
from handlers.events import BlockApplied, Tx

FAR_AWAY = 1 << 48  # no chain gets to such a slot or height, and sums with them stay in 64 bits
MAX_BLOCK_BYTES = 4 * 1024 * 1024  # the chains' own limit has never been above 2,000,000

_EMPTY = {4: b"\x80\x80\xa0", 5: b"\x80\x80\xa0\x80"}  # what follows the header, by the number of parts

_Parsed = tuple[list[Tx], int]


def decode_block(buf: bytes, network: Network, at: int = 0) -> tuple[BlockApplied, int]:
    """Return the block that begins at `at`, and where it ends.

    Ids and hashes are taken over the original bytes. Only the form is checked: signatures, scripts, values and whether
    the header commits to the body are the node's business.

    Raises:
        CutShort: the buffer ends before the block does.
        BlockError: whatever else is wrong with the bytes. Time and memory are bounded by their number.
    """
    try:
        pair, inside = (2, at + 1) if buf[at] == 0x82 else fields(buf, at, 2, what="a block with its era")
        era, inside = uint(buf, inside)
        if era > CONWAY:
            raise BlockError(f"era {era} is unknown", at)
        decode = _decode_shelley if era > BYRON else _decode_byron
        block, end = decode(buf, inside, era, network)
        if pair < 0:
            end = close(buf, end, pair, "a block with its era")
    except IndexError:
        end = len(buf) + 1
    except CborError as error:
        if _whole(buf, at):
            raise BlockError.of(error) from None
        end = len(buf) + 1
    if end > len(buf):
        raise CutShort("the block is cut off", at)
    return block, end


def magic_of(buf: bytes) -> int | None:
    """Return the network number in a block, where it has one: in Byron's header."""
    try:
        _, at = fields(buf, 0, 2, what="a block with its era")
        era, at = uint(buf, at)
        return byron.read_magic(buf, at) if era <= BYRON else None
    except (CborError, IndexError):
        return None


def _whole(buf: bytes, at: int) -> bool:
    """Return whether the bytes are one whole item or certainly none, so that no more of them would help."""
    try:
        return skip(buf, at) <= len(buf)
    except IndexError:
        return False
    except CborError:
        return True


def _check_place(height: int, slot: int, at: int) -> None:
    if height > FAR_AWAY or slot > FAR_AWAY:
        raise BlockError(f"height {height} and slot {slot} are too large for a block", at)


def _decode_byron(buf: bytes, at: int, era: int, network: Network) -> tuple[BlockApplied, int]:
    """Read `[header, body, extra]`; the header is hashed together with the number of its kind."""
    boundary, begin = era == BYRON_BOUNDARY, at
    count, at = fields(buf, at, 3, what="the block")
    height, epoch, slot, previous, end = byron.read_header(buf, at, boundary)
    slot += epoch * network.byron_epoch_slots
    _check_place(height, slot, at)
    digest = blake2b(bytes((0x82, era)) + buf[at:end], digest_size=32).digest()
    txs, at = ([], skip(buf, end)) if boundary else byron.read_transactions(buf, end)
    at = close(buf, skip(buf, at), count, "the block")
    block = BlockApplied(
        height=height,
        hash=digest,
        slot=slot,
        prev_hash=previous,
        time=int(network.start + slot * network.byron_slot_s),
        epoch=epoch,
        era=NAMES[era],
        size=at - begin,
        txs=txs,
    )
    return block, at


def _decode_shelley(buf: bytes, at: int, era: int, network: Network) -> tuple[BlockApplied, int]:
    """Read `[header, bodies, witnesses, metadata]`, since Alonzo with the invalid transactions behind."""
    parts, begin = 5 if era >= ALONZO else 4, at
    count, at = (parts, at + 1) if buf[at] == 0x80 + parts else fields(buf, at, parts, what="the block")
    height, slot, previous, issuer, end = headers.read_header(buf, at)
    _check_place(height, slot, at)
    digest = blake2b(buf[at:end], digest_size=32).digest()
    if buf.startswith(_EMPTY[parts], end):
        txs: list[Tx] = []
        at = end + parts - 1
    else:
        txs, at = _transactions(buf, end, era)
    at = close(buf, at, count, "the block")
    block = BlockApplied(
        height=height,
        hash=digest,
        slot=slot,
        prev_hash=previous,
        time=network.time(slot),
        epoch=network.epoch(slot),
        era=NAMES[era],
        size=at - begin,
        issuer=issuer,
        txs=txs,
    )
    return block, at


def _transactions(buf: bytes, at: int, era: int) -> _Parsed:
    """Put together what a block keeps apart. A size is the ledger's: body, witnesses, metadata and the array's head."""
    bodies: list[shelley.Body] = []
    sizes: list[int] = []
    count, at = array(buf, at)
    while count:
        if count < 0 and buf[at] == BREAK:
            at += 1
            break
        body, end = shelley.read_body(buf, at)
        bodies.append(body)
        sizes.append(end - at + 2)  # the array's head, and the null where metadata would be
        at = end
        count -= 1
    revealed, at = read_witnesses(buf, at, sizes)
    at = _add_metadata(buf, at, sizes)
    invalid: frozenset[int] = frozenset()
    if era >= ALONZO:
        invalid, at = _invalid(buf, at, len(bodies))
    parts = enumerate(zip(bodies, sizes, revealed, strict=True))
    return [_tx(buf, body, size, found, valid=index not in invalid) for index, (body, size, found) in parts], at


def _tx(buf: bytes, body: shelley.Body, size: int, revealed: Revealed, *, valid: bool) -> Tx:
    txid, inputs, outputs, collateral, references, collateral_return, fee, others = body
    datums, redeemers = revealed
    return Tx(
        txid,
        inputs,
        outputs,
        valid,
        collateral,
        references,
        collateral_return,
        fee=fee,
        size=size,
        datums=datums,
        details=details_of(buf, others, redeemers),
    )


def _add_metadata(buf: bytes, at: int, sizes: list[int]) -> int:
    count, at = mapping(buf, at)
    while count:
        if count < 0 and buf[at] == BREAK:
            return at + 1
        index, at = uint(buf, at)
        if index >= len(sizes):
            raise BlockError(f"metadata for transaction {index}, but the block has {len(sizes)}", at)
        end = skip(buf, at)
        sizes[index] += end - at - 1
        at = end
        count -= 1
    return at


def _invalid(buf: bytes, at: int, txs: int) -> tuple[frozenset[int], int]:
    """Return which transactions failed in phase 2."""
    count, at = array(buf, at)
    found: set[int] = set()
    while count:
        if count < 0 and buf[at] == BREAK:
            return frozenset(found), at + 1
        index, at = uint(buf, at)
        if index >= txs:
            raise BlockError(f"transaction {index} is marked as invalid, but the block has {txs}", at)
        found.add(index)
        count -= 1
    return frozenset(found), at
