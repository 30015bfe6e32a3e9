"""Blocks that are made here, rule by rule; the makers serve the other tests of chains too."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import pytest
from cbor2 import CBORTag, dumps, loads

from feeds.cardano.block import decode_block
from feeds.cardano.eras import ALLEGRA, ALONZO, BABBAGE, CONWAY, MAINNET, MARY, PREPROD, PREVIEW, SHELLEY
from feeds.cardano.errors import BlockError, CutShort
from handlers.events import BlockApplied, OutPoint, Output, Tx

KEY_ADDRESS = bytes.fromhex("61" + "9493315cd92eb5d8c4304e67b7e16ae36d61d34502694657811a2c8e")
BYRON_ADDRESS = bytes.fromhex("82d818582183581cf11939f42338d59e21baa08645ac1f0038d5ee969f99fe98f402fe79a0001ac9d64e5b")
NO_HASH = bytes(32)

Made = tuple[dict[int, Any], Any, Any]  # body, witnesses, metadata or None


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def header(height: int, slot: int, previous: bytes | None, era: int) -> list[Any]:
    """Return a header with all its fields; those that are not read are zero."""
    vrf = [bytes(64), bytes(80)]
    front = [height, slot, previous, bytes(32), bytes(32), vrf]
    if era >= BABBAGE:
        return [[*front, 0, bytes(32), [bytes(32), 0, 0, bytes(64)], [8, 0]], bytes(448)]
    return [[*front, vrf, 0, bytes(32), bytes(32), 0, 0, bytes(64), 6, 0], bytes(448)]


def block_parts(
    txs: Sequence[Made] = (),
    *,
    era: int = BABBAGE,
    height: int = 1,
    slot: int = 10,
    previous: bytes | None = NO_HASH,
    invalid: Sequence[int] = (),
) -> list[Any]:
    metadata = {index: tx[2] for index, tx in enumerate(txs) if tx[2] is not None}
    parts = [header(height, slot, previous, era), [tx[0] for tx in txs], [tx[1] for tx in txs], metadata]
    return [era, [*parts, list(invalid)] if era >= ALONZO else parts]


def shelley_block(*args: Any, **options: Any) -> bytes:
    return dumps(block_parts(*args, **options))


def byron_tx(inputs: Sequence[OutPoint], outputs: Sequence[Output]) -> list[Any]:
    return [
        [
            [[0, CBORTag(24, dumps(point))] for point in inputs],
            [[loads(output.address), output.value] for output in outputs],
            {},
        ],
        [[0, CBORTag(24, dumps([bytes(64), bytes(64)]))]],
    ]


def byron_block(txs: Sequence[Any], *, height: int, slot: int, previous: bytes) -> bytes:
    consensus = [list(divmod(slot, 21_600)), bytes(64), [height], [2, []]]
    return dumps([1, [[764_824_073, previous, [], consensus, []], [list(txs), [], [], []], []]])


def boundary_block(*, height: int, epoch: int, previous: bytes) -> bytes:
    return dumps([0, [[764_824_073, previous, bytes(32), [epoch, [height]], [{}]], [bytes(28)] * 3, [{}]]])


def body(**more: Any) -> dict[int, Any]:
    """Return a body with one input and one output; `f<field>=` replaces or adds a field."""
    fields = {0: [[b"\x01" * 32, 0]], 1: [[KEY_ADDRESS, 5]], 2: 170_000}
    return fields | {int(name[1:]): value for name, value in more.items()}


def only_tx(*made: Made, era: int = BABBAGE, invalid: Sequence[int] = ()) -> Tx:
    (tx,) = decode(shelley_block(made, era=era, invalid=invalid)).txs
    return tx


def only_output(output: Any, era: int = BABBAGE) -> Output:
    (found,) = only_tx((body(f1=[output]), {}, None), era=era).outputs
    return found


def decode(raw: bytes) -> BlockApplied:
    block, end = decode_block(raw, MAINNET)
    assert end == len(raw)
    return block


def wrong(raw: bytes) -> str:
    with pytest.raises(BlockError) as caught:
        decode_block(raw, MAINNET)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_ids_and_size_are_of_the_original_bytes() -> None:
    made = body(f3=99, f5={b"\xe1" + bytes(28): 3})
    witnesses, metadata = {0: [[bytes(32), bytes(64)]]}, {674: "hello"}
    tx = only_tx((made, witnesses, metadata))
    assert tx.txid == digest(dumps(made))
    assert tx.size == len(dumps([made, witnesses, metadata]))
    assert only_tx((made, witnesses, None)).size == len(dumps([made, witnesses, None]))
    assert tx.fee == 170_000


def test_a_failed_transaction_keeps_its_inputs_and_outputs() -> None:
    back = {0: KEY_ADDRESS, 1: 4_000_000}
    made = body(f13=[[b"\x02" * 32, 300]], f16=back, f17=1_000_000, f18=[[b"\x03" * 32, 70_000]])
    good, bad = decode(shelley_block([(made, {}, None)] * 2, invalid=[1])).txs
    assert (good.valid, bad.valid) == (True, False)
    for tx in (good, bad):
        assert tx.inputs == [(b"\x01" * 32, 0)]
        assert len(tx.outputs) == 1
        assert tx.collateral == [(b"\x02" * 32, 300)]
        assert tx.references == [(b"\x03" * 32, 70_000)]
        assert tx.collateral_return == Output(KEY_ADDRESS, 4_000_000)


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("others", [[], [[b"\x04" * 32, 24]]])
def test_an_input_listed_twice_counts_once(others: list[list[Any]], tagged: bool) -> None:
    points = [[b"\x05" * 32, 1], *others, [b"\x05" * 32, 1]]
    tx = only_tx((body(f0=CBORTag(258, points) if tagged else points), {}, None), era=CONWAY)
    assert tx.inputs == [(b"\x05" * 32, 1), *map(tuple, others)]


def test_a_list_of_invalid_transactions_exists_since_alonzo() -> None:
    for era in (SHELLEY, ALLEGRA, MARY):
        parts = block_parts([(body(), {}, None)], era=era)
        assert decode(dumps(parts)).txs[0].valid
        parts[1].append([0])
        assert "the block has 5 fields" in wrong(dumps(parts))
    parts = block_parts([(body(), {}, None)], era=ALONZO)
    parts[1].pop()
    assert "the block has 4 fields" in wrong(dumps(parts))
    assert "transaction 1 is marked as invalid, but" in wrong(shelley_block([(body(), {}, None)], invalid=[1]))


def test_a_transaction_needs_inputs_outputs_and_fee() -> None:
    for missing in range(3):
        made = body()
        del made[missing]
        assert "lacks inputs, outputs or fee" in wrong(shelley_block([(made, {}, None)]))


def test_as_many_witnesses_as_transactions() -> None:
    parts = block_parts([(body(), {}, None)])
    parts[1][2].append({})
    assert "2 witness sets, but 1 transactions" in wrong(dumps(parts))
    parts[1][2].clear()
    assert "0 witness sets, but 1 transactions" in wrong(dumps(parts, indefinite_containers=True))
    parts[1][3][3] = {}
    parts[1][2].append({})
    assert "metadata for transaction 3, but the block has 1" in wrong(dumps(parts))


def test_assets_in_the_order_of_the_body() -> None:
    first, second = b"\x0a" * 28, b"\x0b" * 28
    value = [2_000_000, {second: {b"": 1, b"n" * 32: 2**63}, first: {b"tok": 23, b"none": 0}}]
    expected = [(second, b"", 1), (second, b"n" * 32, 2**63), (first, b"tok", 23)]
    for output in ([KEY_ADDRESS, value], {0: KEY_ADDRESS, 1: value}):
        found = only_output(output)
        assert (found.value, found.assets) == (2_000_000, expected)


def test_inline_datums_and_scripts_keep_their_bytes() -> None:
    datum = bytes.fromhex("d8799f1800ff")  # indefinite, and a zero that takes two bytes
    assert only_output({0: KEY_ADDRESS, 1: 7, 2: [1, CBORTag(24, datum)]}) == Output(KEY_ADDRESS, 7, inline_datum=datum)
    native = bytes.fromhex("82008200581c") + b"\x07" * 28
    found = only_output({0: KEY_ADDRESS, 1: 7, 3: CBORTag(24, native)})
    assert found.script_ref == native
    assert found.script_ref_hash == blake2b(b"\x00" + native[2:], digest_size=28).digest()


@pytest.mark.parametrize(
    "output",
    [
        *([KEY_ADDRESS], [KEY_ADDRESS, 1, b"\xdd" * 31], [KEY_ADDRESS, -1], ["text", 1]),
        *([KEY_ADDRESS, [1, {b"\x0a" * 27: {b"": 1}}]], [KEY_ADDRESS, [1, {b"\x0a" * 28: {b"n" * 33: 1}}]]),
        *([KEY_ADDRESS, [1, {b"\x0a" * 28: {b"": -1}}]], {0: KEY_ADDRESS}, {0: KEY_ADDRESS, 1: 2**64}),
        *({0: KEY_ADDRESS, 1: 7, 4: 0}, {0: KEY_ADDRESS, 1: 7, 2: [2, b"\xdd" * 32]}),
        *({0: KEY_ADDRESS, 1: 7, 2: [1, b"\xdd"]}, {0: KEY_ADDRESS, 1: 7, 3: CBORTag(24, b"")}),
        {0: KEY_ADDRESS, 1: 7, 3: CBORTag(24, b"\x82\x01\x58")},
        {0: KEY_ADDRESS, 1: 7, 3: CBORTag(24, b"\x82\x01\x40\x40")},
        {0: KEY_ADDRESS, 1: 7, 3: CBORTag(24, b"\x82\x19\x01\x00\x40")},
    ],
    ids=repr,
)
def test_malformed_outputs_are_refused(output: Any) -> None:
    assert not wrong(shelley_block([(body(f1=[output]), {}, None)])).endswith("the block is cut off")


def test_indefinite_lengths_are_equivalent() -> None:
    made = body(
        f0=[[b"\x09" * 32, index] for index in (0, 23, 24, 255, 256, 65_536)],
        f1=[
            [BYRON_ADDRESS, 2**40, b"\xdd" * 32],
            [KEY_ADDRESS, [1, {b"\x0a" * 28: {b"a": 1, b"": 2}}]],
            {0: KEY_ADDRESS, 1: [5, {}], 2: [1, CBORTag(24, b"\x80")], 3: CBORTag(24, b"\x82\x02\x40")},
        ],
        f13=[[b"\x02" * 32, 1]],
        f16=[KEY_ADDRESS, 4],
        f18=[],
    )
    parts = block_parts([(made, {0: []}, {1: ["x", b"y"]}), (body(), {}, None)], invalid=[1])
    plain, open_ended = decode(dumps(parts)), decode(dumps(parts, indefinite_containers=True))
    assert [facts(tx) for tx in open_ended.txs] == [facts(tx) for tx in plain.txs]
    assert open_ended.hash != plain.hash


def facts(tx: Tx) -> tuple[Any, ...]:
    return tx.inputs, tx.outputs, tx.valid, tx.collateral, tx.references, tx.collateral_return, tx.fee


def test_boundary_block_has_the_slot_after_and_the_height_before() -> None:
    last = decode(byron_block([], height=9, slot=21_599, previous=NO_HASH))
    boundary = decode(boundary_block(height=9, epoch=1, previous=last.hash))
    first = decode(byron_block([], height=10, slot=21_600, previous=boundary.hash))
    assert (boundary.height, boundary.slot, boundary.epoch, boundary.txs) == (last.height, first.slot, 1, [])
    assert boundary.prev_hash == last.hash
    made = loads(boundary_block(height=9, epoch=1, previous=last.hash))
    assert boundary.hash == digest(b"\x82\x00" + dumps(made[1][0]))


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"\x82\x08\x80", "era 8 is unknown"),
        (b"\x83\x05\x80\x80", "a block with its era has 3 fields"),
        (b"\x05", "not an array"),
        (b"\x82\x05\x80", "the block has 0 fields"),
        (b"\x82\x05\x85\x80\x80\x80\xa0\x80", "the header has 0 fields"),
        (b"\x9f\x05\x80\x80\xff", "the block has 0 fields"),
        (b"\xff", "not an array"),
    ],
)
def test_malformed_blocks_are_refused(raw: bytes, what: str) -> None:
    assert what in wrong(raw)


def test_heights_slots_and_indexes_are_bounded() -> None:
    for large in ({"height": 2**62}, {"slot": 2**62}):
        assert "are too large for a block" in wrong(shelley_block(**large))
        assert "too large for a block" in wrong(byron_block([], **({"height": 1, "slot": 1} | large), previous=NO_HASH))
    for field in ("f0", "f13", "f18"):
        for index in (2**32 - 1, 2**32):
            raw = shelley_block([(body(**{field: [[NO_HASH, index]]}), {}, None)])
            if index < 2**32:
                decode(raw)
            else:
                assert "4294967296 is too large here" in wrong(raw)


def test_a_byron_input_ends_with_its_byte_string() -> None:
    made = byron_tx([(NO_HASH, 0)], [])
    made[0][0][0][1] = CBORTag(24, dumps([NO_HASH, 0]) + b"\x00")
    assert "does not end where its byte string does" in wrong(byron_block([made], height=1, slot=1, previous=NO_HASH))
    made[0][0][0] = [1, CBORTag(24, dumps([NO_HASH, 0]))]
    assert "an input of unknown kind 1" in wrong(byron_block([made], height=1, slot=1, previous=NO_HASH))


def test_every_truncation_is_reported_as_one() -> None:
    raw = shelley_block([(body(f16={0: KEY_ADDRESS, 1: 7, 3: CBORTag(24, b"\x82\x01\x41\x00")}), {}, {1: "x"})])
    for end in range(len(raw)):
        with pytest.raises(CutShort):
            decode_block(raw[:end], MAINNET)


def test_a_block_in_a_buffer_or_of_indefinite_length() -> None:
    raw = shelley_block()
    assert "a block with its era has more fields" in wrong(b"\x9f" + raw[1:] + b"\x00\xff")
    assert decode(b"\x9f" + raw[1:] + b"\xff").height == 1
    raw = shelley_block([(body(), {}, None)])
    block, end = decode_block(b"\x00" * 5 + raw + b"\xff" * 9, MAINNET, 5)
    assert (block, end) == (decode(raw), 5 + len(raw))


TIMES = [
    (MAINNET, [(0, 0, 1_506_203_091), (4_492_799, 207, 1_596_059_071), (4_492_800, 208, 1_596_059_091)]),
    (MAINNET, [(16_588_800, 236, 1_608_155_091)]),
    (PREPROD, [(86_399, 3, 1_655_769_580), (86_400, 4, 1_655_769_600), (518_400, 5, 1_656_201_600)]),
    (PREVIEW, [(0, 0, 1_666_656_000), (86_400, 1, 1_666_742_400)]),
]


@pytest.mark.parametrize(("network", "slots"), TIMES)
def test_epoch_and_time_of_a_slot(network: Any, slots: list[tuple[int, int, int]]) -> None:
    assert [(slot, network.epoch(slot), network.time(slot)) for slot, _, _ in slots] == slots
