"""Scripts that real outputs carry: the hash that is derived is the one by which the chain speaks of them."""

from __future__ import annotations

import pytest
from real_data import found, need

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import NETWORKS
from handlers.rendering import script_hash
from storage.rows import Body

SCRIPTS = {  # of a run: how many scripts its outputs carry, and how many of them it speaks of elsewhere
    "cardano/preview-babbage-52558": (1, 0),
    "cardano/preview-genesis-run": (187, 111),
}


@pytest.mark.parametrize("run", found(SCRIPTS))
def test_derived_hashes_name_scripts_of_the_same_chain(run: str) -> None:
    """A script's hash is the credential of the addresses that it guards, and the policy of what it mints."""
    named, carried = set[bytes](), set[tuple[bytes, bytes]]()
    for block in read_chain(need(run), NETWORKS["preview"]):
        for output in (output for tx in block.txs for output in tx.outputs):
            if len(output.address) >= 29 and output.address[0] < 0x80 and output.address[0] & 0x10:
                named.add(output.address[1:29])
            named.update(policy for policy, _, _ in output.assets)
            if output.script_ref is not None and output.script_ref_hash is not None:
                carried.add((output.script_ref, output.script_ref_hash))
    derived = {script: script_hash(Body(b"", 1, script_ref=script)) for script, _ in carried}
    assert derived == dict(carried)
    assert (len(derived), len(named.intersection(filter(None, derived.values())))) == SCRIPTS[run]
