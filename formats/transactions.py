"""Bitcoin transactions field by field, with witnesses and weight; and the merkle tree over the ids of a block."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_HEADER_BYTES = 80
_WIDE = {0xFD: 2, 0xFE: 4, 0xFF: 8}


class TxInput(NamedTuple):
    """An input; `txid` is in display order, and zero for a coinbase."""

    txid: bytes
    vout: int
    script: bytes
    sequence: int
    witness: tuple[bytes, ...] = ()


class TxOutput(NamedTuple):
    """An output: its value in satoshi and its locking script."""

    value: int
    script: bytes


class Transaction(NamedTuple):
    """A transaction with all of its fields; `weight` counts bytes outside of witnesses four times."""

    txid: bytes
    version: int
    lock_time: int
    inputs: tuple[TxInput, ...]
    outputs: tuple[TxOutput, ...]
    size: int
    weight: int

    @property
    def is_coinbase(self) -> bool:
        """Return whether it pays the block reward."""
        return len(self.inputs) == 1 and self.inputs[0].txid == bytes(32)

    @property
    def virtual_size(self) -> int:
        """Return a quarter of the weight, rounded up."""
        return (self.weight + 3) // 4


class _Reader:
    """Reads the fields of a transaction one after the other."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.raw):
            raise ValueError(f"the transaction ends at byte {len(self.raw)}, where byte {end} is expected")
        taken, self.at = self.raw[self.at : end], end
        return taken

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    def size(self) -> int:
        first = self.take(1)[0]
        value = int.from_bytes(self.take(_WIDE[first]), "little") if first in _WIDE else first
        if value > len(self.raw):
            raise ValueError(f"byte {self.at}: a count or length of {value} is more than the transaction has bytes")
        return value

    def text(self) -> bytes:
        return self.take(self.size())


def parse_transaction(raw: bytes) -> Transaction:
    """Return a transaction.

    Raises:
        ValueError: the bytes are not a transaction; the message names the byte.
    """
    reader = _Reader(raw)
    found = _read(reader)
    if reader.at != len(raw):
        raise ValueError(f"byte {reader.at}: {len(raw) - reader.at} bytes follow the transaction")
    return found


def transaction_of_block(block: bytes, txid: bytes) -> bytes:
    """Return the bytes of one transaction of a block.

    Raises:
        ValueError: the block has no such transaction, or cannot be read.
    """
    reader = _Reader(block)
    reader.take(_HEADER_BYTES)
    for _ in range(reader.size()):
        start = reader.at
        if _read(reader).txid == txid:
            return block[start : reader.at]
    raise ValueError(f"the block does not have transaction {txid.hex()}")


def _read(reader: _Reader) -> Transaction:
    """Read the next transaction."""
    raw, start = reader.raw, reader.at
    version = reader.number(_I32)
    segwit = raw[reader.at : reader.at + 2] == b"\x00\x01"
    if segwit:
        reader.at += 2
    body = reader.at
    inputs = [
        TxInput(reader.take(32)[::-1], reader.number(_U32), reader.text(), reader.number(_U32))
        for _ in range(reader.size())
    ]
    outputs = tuple(TxOutput(reader.number(_U64), reader.text()) for _ in range(reader.size()))
    end = reader.at
    if segwit:
        inputs = [each._replace(witness=tuple(reader.text() for _ in range(reader.size()))) for each in inputs]
    witness_end = reader.at
    lock_time = reader.number(_U32)
    stripped = raw[start : start + 4] + raw[body:end] + raw[witness_end : reader.at]
    txid, size = double_sha256(stripped)[::-1], reader.at - start
    return Transaction(txid, version, lock_time, tuple(inputs), outputs, size, 3 * len(stripped) + size)


def double_sha256(data: bytes) -> bytes:
    """Return the hash of the hash."""
    return sha256(sha256(data).digest()).digest()
