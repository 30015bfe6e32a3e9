"""Conversion of one raw block to one `BlockApplied`. Hot path of a catch-up, so few calls and no work for each byte.

What is checked is what the set depends on: the form, that the header commits to the transactions, the one coinbase.
Scripts, signatures, fees and rewards are the node's business. Witnesses are stepped over; they count in `size` only.
"""

import struct
from hashlib import sha256

from msgspec.structs import replace

from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.networks import MAINNET, Network
from handlers.events import BlockApplied, OutPoint, Output, Tx

HEADER_BYTES = 80
SMALLEST_BLOCK = HEADER_BYTES + 1 + 60
OP_RETURN = 0x6A
LARGEST_SCRIPT = 10_000

_NO_PARENT = bytes(32)
_NO_OUTPOINT: OutPoint = (bytes(32), 0xFFFF_FFFF)
_header_fields = struct.Struct("<4x32s32sI").unpack_from
# The fixed part of an input or output together with the first byte of the script's length, nearly always all of it.
_index_and_length = struct.Struct("<IB").unpack_from
_value_and_length = struct.Struct("<QB").unpack_from
_LONG_SIZES = {0xFD: (2, 0xFD), 0xFE: (4, 0x1_0000), 0xFF: (8, 0x1_0000_0000)}

_u32 = struct.Struct("<I").unpack_from

_Parts = tuple[bytes, list[OutPoint], list[Output], int, int, int]


def decode_block(
    raw: bytes, height: int, network: Network = MAINNET, *, check_merkle: bool = True, mark_unspendable: bool = True
) -> BlockApplied:
    """Return the block as the fact that it joined the chain at `height`; hashes are in display order.

    Outputs that can never be spent (OP_RETURN, a script of more than 10,000 bytes, the coinbase of the first block)
    are there with `spendable=False`; without `mark_unspendable` they look like all others. A coinbase has no inputs.
    The same coinbase txid in two blocks is not checked here.

    Raises:
        BlockError: whatever is wrong with the bytes. Time and memory are bounded by their number.
    """
    _check_length(raw, network)
    previous, root, time = _header_fields(raw)
    digests, txs = _read_transactions(raw, mark_unspendable)
    if check_merkle and merkle_root(digests) != root:
        raise BlockError("the Merkle root in the header does not match the transactions")
    if height == 0 and mark_unspendable and not network.genesis_spendable:
        txs = [_unspendable(tx) for tx in txs]
    return BlockApplied(
        height=height,
        hash=double_sha256(raw[:HEADER_BYTES])[::-1],
        prev_hash=None if previous == _NO_PARENT else previous[::-1],
        time=time,
        size=len(raw),
        header=bytes(raw[:HEADER_BYTES]),
        txs=txs,
    )


def decode_transaction(raw: bytes, *, mark_unspendable: bool = True) -> Tx:
    """Return one transaction that is in no block, with its bytes.

    Raises:
        BlockError: whatever is wrong with the bytes.
    """
    try:
        digest, inputs, outputs, version, lock_time, end = _read_transaction(raw, 0, mark_unspendable)
    except (IndexError, struct.error):
        raise BlockError("the transaction continues after the last byte") from None
    if end != len(raw):
        raise BlockError(f"{len(raw) - end} excess bytes after the transaction")
    return Tx(digest[::-1], inputs, outputs, size=len(raw), raw=raw, version=version, lock_time=lock_time)


def double_sha256(data: bytes) -> bytes:
    """Return the hash of the hash, in the order of the bytes on disk."""
    return sha256(sha256(data).digest()).digest()


def merkle_root(digests: list[bytes]) -> bytes:
    """Return what a header commits to; `digests` (at least one) are in the order of the bytes on disk."""
    while len(digests) > 1:
        if len(digests) % 2:
            digests = [*digests, digests[-1]]
        pairs = zip(digests[::2], digests[1::2], strict=True)
        digests = [sha256(sha256(left + right).digest()).digest() for left, right in pairs]
    return digests[0]


def _check_length(raw: bytes, network: Network) -> None:
    if len(raw) < SMALLEST_BLOCK:
        raise BlockError(f"{len(raw)} bytes are not a block: the smallest block has {SMALLEST_BLOCK}")
    if len(raw) > network.max_block_bytes:
        raise BlockError(f"{len(raw)} bytes, but a block of {network.name} has at most {network.max_block_bytes}")


def _read_transactions(raw: bytes, mark: bool) -> tuple[list[bytes], list[Tx]]:
    count, at = _size(raw, HEADER_BYTES)
    digests: list[bytes] = []
    txs: list[Tx] = []
    for number in range(count):
        start = at
        try:
            digest, inputs, outputs, version, lock_time, at = _read_transaction(raw, start, mark)
        except (IndexError, struct.error):
            raise BlockError(f"transaction {number} at byte {start} continues after the last byte") from None
        coinbase = inputs[0] == _NO_OUTPOINT and len(inputs) == 1
        if coinbase != (number == 0) or (number and _NO_OUTPOINT in inputs):
            raise BlockError(f"transaction {number} at byte {start}: the first one, and no other, must be a coinbase")
        if coinbase:
            inputs = []
        digests.append(digest)
        size = at - start
        txs.append(
            Tx(digest[::-1], inputs, outputs, coinbase=coinbase, size=size, version=version, lock_time=lock_time)
        )
    if at != len(raw):
        raise BlockError(f"{len(raw) - at} excess bytes after {count} transactions, from byte {at}")
    # NOTE: repeating the last transactions can leave the merkle root as it was; that forgery always repeats a txid.
    if len(set(digests)) != len(digests):
        raise BlockError("a transaction occurs twice")
    return digests, txs


def _read_transaction(raw: bytes, start: int, mark: bool) -> _Parts:
    """Return hash, inputs, outputs, version, lock time and where the transaction ends.

    Past the end: IndexError or struct.error.
    """
    at = start + 4
    segwit = raw[at] == 0
    if segwit:
        if raw[at + 1] != 1:
            raise BlockError(f"byte {at}: a transaction without inputs")
        at += 2
    inputs, outputs_at = _read_inputs(raw, at)
    outputs, body_end = _read_outputs(raw, outputs_at, mark)
    if segwit:
        end = _skip_witnesses(raw, body_end, len(inputs)) + 4
        hashed = raw[start : start + 4] + raw[at:body_end] + raw[end - 4 : end]
    else:
        end = body_end + 4
        hashed = raw[start:end]
    if end > len(raw):
        raise IndexError
    (version,), (lock_time,) = _u32(raw, start), _u32(raw, end - 4)
    return sha256(sha256(hashed).digest()).digest(), inputs, outputs, version, lock_time, end


def _read_inputs(raw: bytes, at: int) -> tuple[list[OutPoint], int]:
    count, at = _size(raw, at)
    if not count:
        raise BlockError(f"byte {at - 1}: a transaction without inputs")
    inputs: list[OutPoint] = []
    for _ in range(count):
        txid = raw[at + 31 : at - 1 : -1]
        index, length = _index_and_length(raw, at + 32)
        if length < 0xFD:
            at += length + 41
        else:
            length, at = _size(raw, at + 36)
            at += length + 4
        inputs.append((txid, index))
    return inputs, at


def _read_outputs(raw: bytes, at: int, mark: bool) -> tuple[list[Output], int]:
    count, at = _size(raw, at)
    if not count:
        raise BlockError(f"byte {at - 1}: a transaction without outputs")
    outputs: list[Output] = []
    for _ in range(count):
        value, length = _value_and_length(raw, at)
        if length < 0xFD:
            at += 9
        else:
            length, at = _size(raw, at + 8)
        script = raw[at : at + length]
        at += length
        if mark and (length > LARGEST_SCRIPT or (length and script[0] == OP_RETURN)):
            outputs.append(Output(script, value, spendable=False))
        else:
            outputs.append(Output(script, value))
    return outputs, at


def _skip_witnesses(raw: bytes, at: int, inputs: int) -> int:
    start = at
    for _ in range(inputs):
        items, at = _size(raw, at)
        for _ in range(items):
            length = raw[at]
            if length < 0xFD:
                at += length + 1
            else:
                length, at = _size(raw, at)
                at += length
    if at == start + inputs and not any(raw[start:at]):
        raise BlockError(f"byte {start}: a transaction is marked as having witnesses, but has none")
    return at


def _size(raw: bytes, at: int) -> tuple[int, int]:
    """Read a count or length and return it and where it ends; it has one form only, and fits in what is left."""
    size = raw[at]
    if size < 0xFD:
        return size, at + 1
    width, smallest = _LONG_SIZES[size]
    end = at + 1 + width
    size = int.from_bytes(raw[at + 1 : end], "little")
    if size < smallest:
        raise BlockError(f"byte {at}: {size} is not written in its shortest form")
    if size > len(raw) - end:
        raise BlockError(f"byte {at}: a count or length of {size}, but only {max(0, len(raw) - end)} bytes are left")
    return size, end


def _unspendable(tx: Tx) -> Tx:
    return replace(tx, outputs=[replace(output, spendable=False) for output in tx.outputs])
