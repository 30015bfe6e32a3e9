"""The issuers in the headers of real blocks, compared with another CBOR decoder."""

from __future__ import annotations

import lzma

import cbor2
import pytest
from cardano_runs import RUNS, network_of
from real_data import find, need

from feeds.cardano.chunks import blocks_in
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
