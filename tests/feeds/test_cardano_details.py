"""Counts and sums of transactions, compared with those of another decoder of CBOR."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from real_data import names, need

from feeds.cardano.block import decode_block
from feeds.cardano.details import count_redeemers
from feeds.cardano.eras import MAINNET
from handlers.events import Details

FILES = names("cardano/single/*.cbor")


def details_of(body: dict[int, Any], witnesses: dict[int, Any]) -> Details:
    kinds = [certificate[0] for certificate in body.get(4, ())]

    def count(*wanted: int) -> int:
        return sum(kind in wanted for kind in kinds)

    return Details(
        invalid_before=body.get(8),
        invalid_hereafter=body.get(3),
        withdrawal_count=len(body.get(5, {})),
        withdrawn=sum(body.get(5, {}).values()),
        mir_cert_count=count(6),
        delegation_count=count(2, 10, 11, 13),
        stake_cert_count=count(0, 1, 7, 8, 11, 12, 13),
        pool_update_count=count(3),
        pool_retire_count=count(4),
        asset_mint_or_burn_count=sum(map(len, body.get(9, {}).values())),
        redeemer_count=len(witnesses.get(5, ())),
        treasury_donation=body.get(22, 0),
    )


def test_details_of_real_transactions() -> None:
    met = set[str]()
    for file in FILES:
        raw = need(file).read_bytes()
        era, block = cbor2.loads(raw)
        found = [tx.details for tx in decode_block(raw, MAINNET)[0].txs]
        if era < 2:
            assert set(found) <= {Details()}
            continue
        assert found == [details_of(*each) for each in zip(block[1], block[2], strict=True)], file
        met |= {name for each in found for name in Details.__struct_fields__ if each and getattr(each, name)}
    assert met >= {*Details.__struct_fields__} - {"treasury_donation", "mir_cert_count", "pool_retire_count"}, met


@pytest.mark.parametrize("indefinite", [False, True])
def test_redeemers_in_either_form(indefinite: bool) -> None:
    """Arrays and maps are counted, of definite length or not."""
    listed, keyed = cbor2.dumps([[0, 0, 0, [1, 1]]] * 3), cbor2.dumps({(0, 0): [0, [1, 1]]})
    as_array = b"\x9f" + listed[1:] + b"\xff" if indefinite else listed
    as_map = b"\xbf" + keyed[1:] + b"\xff" if indefinite else keyed
    assert (count_redeemers(as_array, 0), count_redeemers(as_map, 0)) == (3, 1)
