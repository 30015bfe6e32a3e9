"""Blockfrost's API: what the bytes of a transaction contain, the supply, and pages on both sides of a rollback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import blockfrost_schema
import cbor2
import httpx
import installed
import pytest
from blockfrost_schema import NOT_STORED
from chain_model import Coin
from hypothesis import example, given, settings
from hypothesis import strategies as st
from installed import FOLDER, needs_npm
from msgspec.structs import replace
from preview import CODEC, blocks, coins, feed, served
from questions import Api, short_folder
from stand_in import RESERVES, TREASURY, Node, node

from feeds.cardano.details import Details, Redeemer, read_details
from feeds.cardano.errors import BlockError
from feeds.cardano.transaction import read_transaction
from handlers.events import Rollback, RollbackPoint

ROOT = "/blockfrost/preview/api/v0"
KEY, POLICY = b"\x01" * 28, b"\x02" * 28
TO = b"\x60" + bytes(27) + b"\x05"
METADATA = {674: {"msg": ["hello"]}, 1: "x"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Node]:
    with node() as made:
        yield made


@pytest.fixture(scope="module")
def lasting(upstream: Node) -> Iterator[Api]:
    with short_folder() as folder, served(folder, upstream={"ogmios": upstream.url}) as api:
        yield api


@pytest.fixture
def frost(upstream: Node) -> Iterator[Api]:
    with short_folder() as folder, served(folder, upstream={"ogmios": upstream.url}) as api:
        yield api


def ask(api: Api, path: str, status: int = 200) -> Any:
    answer = api.ask(f"{ROOT}{path}")
    assert answer.status_code == status, answer.text
    if FOLDER:
        blockfrost_schema.check(path, status, answer.json())
    return answer.json()


def post(api: Api, path: str, body: bytes) -> httpx.Response:
    transport = httpx.HTTPTransport(uds=str(api.daemon.folder / "http"))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=30) as client:
        return client.post(f"{ROOT}{path}", content=body)


def submit(api: Api, raw: bytes) -> str:
    answer = post(api, "/tx/submit", raw)
    assert answer.status_code == 200, answer.text
    return str(answer.json())


def live() -> list[Coin]:
    unspent = [coin for coin in coins().values() if not coin.spend and coin.block.height]
    return sorted(unspent, key=lambda coin: coin.output.value > 5_000_000, reverse=True)


def transaction(first: Coin, second: Coin) -> bytes:
    """Return a transaction with something of everything: 2 ada are deposited, 7 lovelace withdrawn, 11 donated."""
    body = {
        0: [[first.txid, first.number]],
        1: [{0: TO, 1: first.output.value - 200_000 - 2_000_000 + 7 - 11}],
        2: 200_000,
        3: 9_000_000,
        4: [[0, [0, KEY]], [2, [0, KEY], KEY], [3, *[b""] * 9], [4, KEY, 9], [6, [0, {}]], [11, [0, KEY], KEY, 2], [9]],
        5: {b"\xe0" + KEY: 7},
        8: 12,
        9: {POLICY: {b"a": 1, b"b": -2}, KEY: {b"": 3}},
        13: [[second.txid, second.number]],
        18: [[second.txid, second.number]],
        22: 11,
    }
    redeemers = [[0, 0, 42, [1700, 476_468]], [3, 0, 42, [5, 7]]]
    return cbor2.dumps([body, {5: redeemers}, True, cbor2.CBORTag(259, {0: METADATA})])


COUNTS = {
    "deposit": "2000000",
    "invalid_before": "12",
    "invalid_hereafter": "9000000",
    "withdrawal_count": 1,
    "mir_cert_count": 1,
    "delegation_count": 2,
    "stake_cert_count": 2,
    "pool_update_count": 1,
    "pool_retire_count": 1,
    "asset_mint_or_burn_count": 3,
    "redeemer_count": 2,
}


def test_a_transaction_whose_bytes_are_kept(frost: Api) -> None:
    first, second, *_ = live()
    raw = transaction(first, second)
    txid = submit(frost, raw)
    waiting = ask(frost, f"/mempool/{txid}")
    assert waiting["tx"] == waiting["tx"] | COUNTS
    places = [(each["tx_hash"], each["collateral"], each["reference"]) for each in waiting["inputs"]]
    other = second.txid.hex()
    assert places == [(first.txid.hex(), False, False), (other, True, False), (other, False, True)]
    assert waiting["inputs"][1]["address"] == CODEC.write(second.output.address)
    assert waiting["redeemers"] == [
        {"tx_index": 0, "purpose": "spend", "unit_mem": "1700", "unit_steps": "476468"},
        {"tx_index": 0, "purpose": "reward", "unit_mem": "5", "unit_steps": "7"},
    ]
    ask(frost, f"/txs/{txid}/metadata/cbor", 404)  # clients take it for confirmed
    tip = blocks()[-1]
    block = replace(tip, height=tip.height + 1, slot=(tip.slot or 0) + 20, hash=b"\x01" * 32, prev_hash=tip.hash)
    feed(frost, replace(block, txs=[read_transaction(raw)]))
    found = ask(frost, f"/txs/{txid}")
    assert found == found | COUNTS and found["treasury_donation"] == "11"
    assert ask(frost, f"/txs/{txid}/metadata/cbor") == [
        {"label": str(label), "cbor_metadata": f"\\x{one.hex()}", "metadata": one.hex()}
        for label, one in ((label, cbor2.dumps({label: value})) for label, value in METADATA.items())
    ]
    if FOLDER:
        assert not blockfrost_schema.missing(f"/txs/{txid}", found)
        assert not blockfrost_schema.missing(f"/mempool/{txid}", waiting)


def test_a_transaction_after_one_that_waits(frost: Api) -> None:
    first, *_ = live()
    parent = submit(frost, transaction(*live()[:2]))
    value = read_transaction(transaction(*live()[:2])).outputs[0].value
    body = {0: [[bytes.fromhex(parent), 0]], 1: [{0: first.output.address, 1: value - 200_000}], 2: 200_000}
    child = ask(frost, f"/mempool/{submit(frost, cbor2.dumps([body, {}, True, None]))}")
    assert child["inputs"][0]["address"] == CODEC.write(TO) and child["tx"]["deposit"] == "0"
    assert len(ask(frost, f"/mempool/addresses/{CODEC.write(TO)}")) == 2


def test_the_supply(frost: Api, upstream: Node) -> None:
    found = ask(frost, "/network")["supply"]
    assert found["max"] == "45000000000000000" and found["total"] == str(45_000_000_000_000_000 - RESERVES)
    assert (found["treasury"], found["reserves"]) == (str(TREASURY), str(RESERVES))
    assert upstream.methods()[-1] == "queryLedgerState/treasuryAndReserves"


@needs_npm
def test_the_documentation_names_what_is_null() -> None:
    """Each path with a field that is null although the schema requires a value is in the list of differences."""
    listed = (installed.ROOT / "docs" / "clients.md").read_text().partition("**Values that are not stored are null")[2]
    listed = listed.partition("- **")[0]
    for path, names in NOT_STORED.items():
        assert blockfrost_schema.named(path) == path
        for name in names:
            assert f"`{name}`" in listed, (path, name)


def test_a_rollback_between_two_pages(frost: Api) -> None:
    """The header with the tip differs, and the first page again shows the chain as it is now."""
    address = max((coin.output.address for coin in live()), key=[coin.output.address for coin in live()].count)
    path = f"{ROOT}/addresses/{CODEC.write(address)}/utxos?count=3&order=desc"
    first = frost.ask(path)
    own = [coin for coin in live() if coin.output.address == address]
    newest = max(own, key=lambda coin: coin.block.height)
    before = blocks()[newest.block.height - blocks()[0].height - 1]
    feed(frost, Rollback(to=RollbackPoint(hash=before.hash)))
    second = frost.ask(f"{path}&page=2")
    assert first.headers["x-tip-hash"] == blocks()[-1].hash.hex() != second.headers["x-tip-hash"] == before.hash.hex()
    again = frost.ask(path)
    assert again.headers["x-tip-hash"] == before.hash.hex()
    assert newest.txid.hex() in {each["tx_hash"] for each in first.json()}
    assert newest.txid.hex() not in {each["tx_hash"] for each in again.json() + second.json()}


# --- the bytes of a transaction --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auxiliary", "metadata"),
    [
        (METADATA, METADATA),
        ([METADATA, []], METADATA),
        (cbor2.CBORTag(259, {1: []}), {}),
        (None, {}),
    ],
    ids=["alone", "with scripts", "tagged, only scripts", "none"],
)
def test_forms_of_metadata(auxiliary: object, metadata: dict[int, object]) -> None:
    body = {0: [], 1: [], 2: 0}
    for fields in ([body, {}, auxiliary], [body, {}, True, auxiliary], [body, {}, False, auxiliary]):
        found = read_details(cbor2.dumps(fields))
        assert found.metadata == [(label, cbor2.dumps({label: value})) for label, value in metadata.items()]


def test_redeemers_as_a_map() -> None:
    redeemers = {(2, 1): [42, [1, 2]], (5, 0): [[], [3, 4]]}
    assert read_details(cbor2.dumps([{}, {5: redeemers}, None])) == Details(
        None, None, [], [], 0, 0, [Redeemer("cert", 1, 1, 2), Redeemer("propose", 0, 3, 4)], []
    )


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([{}, {}], "2 fields"),
        ([{4: [[]]}, {}, None], "a certificate has no fields"),
        ([{}, {5: [[0, 0, 1]]}, None], "a redeemer has 3 fields"),
        ([{}, {5: [[6, 0, 1, [1, 2]]]}, None], "another purpose or budget"),
        ([{}, {5: [[0, 0, 1, [1]]]}, None], "another purpose or budget"),
    ],
)
def test_malformed_bytes(fields: object, error: str) -> None:
    with pytest.raises(BlockError, match=error):
        read_details(cbor2.dumps(fields))


WHOLE = transaction(*list(coins().values())[:2])


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.booleans())
@example(0, bytes.fromhex("9f"), True)
def test_random_bytes(at: int, other: bytes, cut: bool) -> None:
    """Bytes that are cut off or changed are refused, or read: nothing else happens."""
    raw = WHOLE[:at] + other + (b"" if cut else WHOLE[at + len(other) :])
    try:
        found = read_details(raw)
    except BlockError as error:
        assert error.offset <= len(raw) + 1
    else:
        assert len(found) == len(Details._fields)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["84a0", "00" * 32]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["txId", "index", "address", "value", "coins", "assets", "script"]), inner)
    ),
    max_leaves=6,
)
BODIES = st.binary(max_size=40) | st.builds(
    lambda cbor, outputs: json.dumps({"cbor": cbor, "additionalUtxoSet": outputs}).encode(),
    st.just("84a0") | VALUES,
    st.lists(st.lists(VALUES, min_size=2, max_size=2) | VALUES, max_size=2) | VALUES,
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["/tx/submit", "/utils/txs/evaluate", "/utils/txs/evaluate/utxos"]), BODIES)
def test_random_bodies(lasting: Api, path: str, body: bytes) -> None:
    answer = post(lasting, path, body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert set(answer.json()) == {"status_code", "error", "message"}
