"""The check of a proof, which needs no store, daemon or configuration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from string import hexdigits
from typing import Any

import cbor2
import click
import msgspec

from daemon.commands.common import DAMAGED, WRONG_USE, Exit
from handlers import records
from handlers.proofs import Contradiction, MmrProof, check

_DIGITS = 64


def verify(path: Path, root: str | None) -> None:
    """Print what the proof in a file proves, or end with what contradicts."""
    name = "standard input" if path == Path("-") else str(path)
    if root is not None and (len(root) != _DIGITS or not set(root) <= set(hexdigits)):
        raise Exit(f"--root is {root!r}; it is {_DIGITS} hex digits", WRONG_USE)
    try:
        raw = sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()
        proof = msgspec.json.decode(raw, type=MmrProof)
    except OSError as error:
        raise Exit(f"{name}: {error.strerror or error}", WRONG_USE) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Exit(f"{name} is not a proof: {error}", WRONG_USE) from error
    try:
        check(proof, root)
    except Contradiction as wrong:
        raise Exit(f"{name} is not a valid proof: {wrong.step}: {wrong}", DAMAGED) from wrong
    for line in _lines(proof, trusted=root is not None):
        click.echo(line)


def _lines(proof: MmrProof, *, trusted: bool) -> Iterator[str]:
    at = "before the first block" if proof.hash is None else f"at block {proof.height} {proof.hash}"
    yield f"output   {proof.tx_hash}#{proof.output_index}"
    yield from _record(bytes.fromhex(proof.data))
    yield f"created  leaf {proof.leaf:,} of the outputs"
    yield f"unspent  {'still unspent' if proof.unspent else 'no, it is spent'} {at}"
    yield f"root     {proof.root}" + (
        "" if trusted else ", according to the proof itself: pass the expected root with --root"
    )


def _record(data: bytes) -> Iterator[str]:
    """Yield the content of the leaf, which the root commits to, so it can be trusted."""
    try:
        _, record = cbor2.loads(data)
        fields: dict[int, Any] = dict(record)
        yield f"address  {fields[records.ADDRESS].hex()}"
        yield f"value    {fields[records.VALUE]:,}"
        yield f"created  block {fields[records.HEIGHT]} {fields[records.BLOCK_HASH].hex()}"
    except (cbor2.CBORDecodeError, KeyError, TypeError, ValueError, AttributeError):
        yield "record   in a format that this version does not support"
