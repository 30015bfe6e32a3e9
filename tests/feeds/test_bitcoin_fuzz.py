"""Whatever bytes come: a block or a BlockError, soon, and without more memory than the bytes account for."""

import lzma
import time
import tracemalloc
from collections import Counter
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import names, need
from test_bitcoin_block import MIXED, WITNESS, made_block, made_coinbase, made_input, made_output, made_tx

from feeds.bitcoin.block import decode_block
from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.networks import REGTEST

DEADLINE_MS = 2000  # of one example; the largest real block here takes about 3


@cache
def real_blocks() -> list[bytes]:
    raws = [lzma.decompress(need(name).read_bytes()) for name in names("bitcoin/blocks/*.blk.xz")]
    return [raw for raw in raws if len(raw) < 30_000]


def outcome(raw: bytes, *, check_merkle: bool) -> str:
    try:
        block = decode_block(raw, 1, REGTEST, check_merkle=check_merkle)
    except BlockError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 300
        return "refused"
    assert block.txs[0].coinbase
    assert sum(tx.size or 0 for tx in block.txs) < len(raw)
    return "a block"


def change(data: st.DataObject, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(80, len(changed)))
        length = data.draw(st.integers(0, 12))
        piece = data.draw(st.binary(max_size=12) | st.just(bytes(changed[at : at + length])))
        overwritten = data.draw(st.sampled_from([len(piece), len(piece), 0, length]))
        changed[at : at + overwritten] = piece
    return bytes(changed)


@settings(max_examples=400, deadline=DEADLINE_MS)
@given(st.binary(max_size=600), st.booleans())
def test_random_bytes_are_refused(raw: bytes, behind_a_header: bool) -> None:
    assert outcome(MIXED[:80] * behind_a_header + raw, check_merkle=False) == "refused"


def test_changed_blocks_are_refused_or_keep_their_ids() -> None:
    seen = Counter[tuple[bool, str]]()

    @settings(max_examples=600, deadline=DEADLINE_MS)
    @given(data=st.data(), check=st.booleans())
    def run(data: st.DataObject, check: bool) -> None:
        raw = data.draw(st.sampled_from([MIXED, MIXED, *real_blocks()]))
        changed = change(data, raw)
        found = outcome(changed, check_merkle=check)
        if check and found == "a block":
            txids = [[tx.txid for tx in decode_block(bytes_, 1).txs] for bytes_ in (changed, raw)]
            assert txids[0] == txids[1]
        seen[check, found] += changed != raw

    run()
    assert min(seen[False, "a block"], seen[False, "refused"], seen[True, "refused"]) > 0


def test_the_largest_blocks_are_decoded_in_bounded_time() -> None:
    start = MIXED[:80] + b"\x02" + made_coinbase()
    inputs = b"\x02\0\0\0" + b"\xfe" + (90_000).to_bytes(4, "little") + made_input() * 90_000
    outputs = b"\x02\0\0\0" + b"\x01" + made_input() + b"\xfe" + (400_000).to_bytes(4, "little")
    items = b"\xfe" + (3_900_000).to_bytes(4, "little")
    witness = made_tx([made_input()], [made_output()], items + bytes(3_900_000))
    tiny = [made_tx([made_input(index=index)], [made_output()]) for index in range(60_000)]
    worst = {
        "inputs": start + inputs,
        "outputs": start + outputs + made_output(1, b"") * 400_000,
        "witness": made_block([made_coinbase(), witness], root=bytes(32)),
        "transactions": made_block([made_coinbase(), *tiny], root=bytes(32)),
    }
    for name, raw in worst.items():
        assert len(raw) > 3_500_000, name
        begun = time.process_time()  # others may have the machine meanwhile
        found = outcome(raw, check_merkle=False)
        assert time.process_time() - begun < DEADLINE_MS / 1000, name
        assert found == ("a block" if name in ("witness", "transactions") else "refused")


def test_counts_reserve_no_memory() -> None:
    second = made_tx([made_input()], [made_output()], WITNESS)
    at = 81 + len(made_coinbase())
    huge = [prefix + b"\xff" * width for prefix, width in ((b"\xfd", 2), (b"\xfe", 4), (b"\xff", 8))]
    tracemalloc.start()
    try:
        for place in range(81, at + len(second)):
            for size in huge:
                raw = MIXED[:80] + b"\x02" + made_coinbase() + second
                assert outcome(raw[:place] + size + raw[place + 1 :], check_merkle=False) in ("refused", "a block")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
