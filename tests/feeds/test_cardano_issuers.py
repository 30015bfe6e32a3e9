"""What headers say of the issuers of real blocks, beside another reader of CBOR."""

from __future__ import annotations

import lzma

import cbor2
import pytest
from cardano_runs import RUNS, network_of
from real_data import find, need

from feeds.cardano.chunks import blocks_in
from feeds.cardano.headers import read_header
from handlers.events import Issuer

SMALL = [run for run in RUNS if find(f"{run}/run.chunk.xz")]


@pytest.mark.parametrize("run", SMALL)
def test_issuers(run: str) -> None:
    found, at, file = 0, 0, need(f"{run}/run.chunk.xz")
    content = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
    for block, end in blocks_in(file, network_of(run)):
        raw, at = content[at:end], end
        if block.era == "byron":
            assert block.issuer is None
            continue
        body = cbor2.loads(raw)[1][0][0]
        certificate = body[8] if len(body) == 10 else body[9:13]
        assert block.issuer == Issuer(body[3], body[4], certificate[0], certificate[1])
        found += 1
    assert found


def test_headers_in_other_encodings() -> None:
    """Long numbers, indefinite arrays, and keys that are none."""
    key = b"\x58\x20" + bytes(32)
    head = b"\x01\x02\xf6" + key + key
    certificate = key + b"\x05\x06\x41\x00"
    nested = head + b"\x80\x01" + key + b"\x84" + certificate + b"\x82\x08\x00"
    flat = head + b"\x80\x80\x01" + key + certificate + b"\x08\x00"
    wanted = Issuer(bytes(32), bytes(32), bytes(32), 5)
    for body in (b"\x8a" + nested, b"\x9f" + nested + b"\xff", b"\x8f" + flat, b"\x9f" + flat + b"\xff"):
        header = b"\x82" + body + b"\x41\x00"
        assert read_header(header, 0) == (1, 2, None, wanted, len(header))
    short = b"\x82\x8a" + nested.replace(key, b"\x41\x00", 1) + b"\x41\x00"
    assert read_header(short, 0)[3] is None
