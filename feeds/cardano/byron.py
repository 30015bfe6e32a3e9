"""The transactions of a Byron block, and its header."""

from __future__ import annotations

from hashlib import blake2b

from feeds.cardano.errors import BlockError
from formats.cbor import BREAK, array, close, embedded, fields, sized_bytes, skip, small_uint, uint
from handlers.events import Details, OutPoint, Output, Tx

_TXID_HEAD = b"\x82\x58\x20"
_NOTHING_ELSE = Details()  # transactions have inputs and outputs only


def read_header(buf: bytes, at: int, boundary: bool) -> tuple[int, int, int, bytes, int]:
    """Return height, epoch, slot in the epoch, the hash of the block before, and where the header ends.

    A boundary block opens its epoch: it has the slot of the first block after it and the height of the one before.
    """
    end = skip(buf, at)
    _, at = fields(buf, at, 5, what="the header")
    at = skip(buf, at)  # network magic
    previous, at = sized_bytes(buf, at, 32, "the previous block's hash")
    at = skip(buf, at)  # proof of the body
    slot = 0
    if boundary:
        _, at = fields(buf, at, 2, what="the consensus data")
        epoch, at = uint(buf, at)
    else:
        _, at = fields(buf, at, 4, what="the consensus data")
        count, at = fields(buf, at, 2, what="the slot")
        epoch, at = uint(buf, at)
        slot, at = uint(buf, at)
        at = skip(buf, close(buf, at, count, "the slot"))  # issuer
    _, at = fields(buf, at, 1, what="the difficulty")
    height, _ = uint(buf, at)
    return height, epoch, slot, previous, end


def read_magic(buf: bytes, at: int) -> int:
    """Return the network number in a block."""
    _, at = fields(buf, at, 3, what="the block")
    _, at = fields(buf, at, 5, what="the header")
    return uint(buf, at)[0]


def read_transactions(buf: bytes, at: int) -> tuple[list[Tx], int]:
    """Return the transactions of a block's body, and where the body ends."""
    end = skip(buf, at)
    _, at = fields(buf, at, 4, what="the body")
    count, at = array(buf, at)
    txs: list[Tx] = []
    while count:
        if count < 0 and buf[at] == BREAK:
            break
        tx, at = _transaction(buf, at)
        txs.append(tx)
        count -= 1
    return txs, end


def _transaction(buf: bytes, at: int) -> tuple[Tx, int]:
    """Return one `[transaction, witnesses]`; the size counts both, as the fee does. The fee is stated nowhere."""
    begin = at
    pair, at = fields(buf, at, 2, what="a transaction with witnesses")
    body = at
    count, at = fields(buf, at, 3, what="a transaction")
    inputs, at = _inputs(buf, at)
    outputs, at = _outputs(buf, at)
    at = close(buf, skip(buf, at), count, "a transaction")
    txid = blake2b(buf[body:at], digest_size=32).digest()
    end = close(buf, skip(buf, at), pair, "a transaction with witnesses")
    return Tx(txid, inputs, outputs, size=end - begin, details=_NOTHING_ELSE), end


def _inputs(buf: bytes, at: int) -> tuple[list[OutPoint], int]:
    count, at = array(buf, at)
    found: list[OutPoint] = []
    while count:
        if count < 0 and buf[at] == BREAK:
            at += 1
            break
        pair, at = fields(buf, at, 2, what="an input")
        kind, at = uint(buf, at)
        if kind != 0:
            raise BlockError(f"an input of unknown kind {kind}", at)
        at, end = embedded(buf, at)
        _, at = fields(buf, at, 2, what="an input")
        txid, at = sized_bytes(buf, at, 32, "a transaction id")
        index, at = small_uint(buf, at)
        if at != end:
            raise BlockError("an input does not end where its byte string does", at)
        found.append((txid, index))
        at = close(buf, at, pair, "an input")
        count -= 1
    return list(dict.fromkeys(found)), at


def _outputs(buf: bytes, at: int) -> tuple[list[Output], int]:
    """Return the outputs, each address in the bytes that it has in the transaction."""
    count, at = array(buf, at)
    found: list[Output] = []
    while count:
        if count < 0 and buf[at] == BREAK:
            at += 1
            break
        pair, at = fields(buf, at, 2, what="an output")
        address, at = at, skip(buf, at)
        _, payload = fields(buf, address, 2, what="an address")
        embedded(buf, payload)
        value, end = uint(buf, at)
        found.append(Output(buf[address:at], value))
        at = close(buf, end, pair, "an output")
        count -= 1
    return found, at
