"""Blockfrost's API: what the bytes of a transaction contain, the supply, and pages on both sides of a rollback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import anyio
import blockfrost_schema
import cbor2
import httpx
import installed
import pytest
from blockfrost_schema import NOT_KNOWN
from chain_model import Coin
from hypothesis import example, given, settings
from hypothesis import strategies as st
from installed import FOLDER, needs_npm
from msgspec.structs import replace
from patience import until
from preview import CODEC, before, blocks, coins, feed, served
from questions import Api, short_folder
from stand_in import RESERVES, TREASURY, Node, node

from daemon.http.blockfrost import network
from daemon.http.blockfrost.requests import Refused
from daemon.turns import Turns
from feeds.cardano.details import Extras, Redeemer, read_details, read_extras
from feeds.cardano.errors import BlockError
from feeds.cardano.transaction import read_transaction
from handlers.events import Details, Output, Rollback, RollbackPoint, Tx, TxSubmitted

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
        4: [
            [0, [0, KEY]],
            [2, [0, KEY], KEY],
            [3, *[b""] * 9],
            [4, KEY, 9],
            [6, [0, {}]],
            [11, [0, KEY], KEY, 2],
            [9],
            [13, [0, KEY], KEY, [2], 2],
        ],
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
    "delegation_count": 3,
    "stake_cert_count": 3,
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


def test_a_transaction_that_fails_in_its_block(frost: Api) -> None:
    """It spends its collateral, although it was submitted as a valid one."""
    first, second, third, *_ = live()
    inputs = [[each.txid, each.number] for each in (first, second)]
    output = {0: TO, 1: first.output.value + second.output.value - 200_000}
    raw = cbor2.dumps([{0: inputs, 1: [output], 2: 200_000, 13: [[third.txid, third.number]]}, {}, True, None])
    txid, tip = submit(frost, raw), blocks()[-1]
    block = replace(tip, height=tip.height + 1, slot=(tip.slot or 0) + 20, hash=b"\x01" * 32, prev_hash=tip.hash)
    feed(frost, replace(block, txs=[replace(read_transaction(raw), valid=False)]))
    found = ask(frost, f"/txs/{txid}")
    assert (found["valid_contract"], found["utxo_count"]) == (False, 1)


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


# --- what was never sent, or is no longer kept ------------------------------------------------------------------------


def refused(api: Api, path: str, status: int, what: str) -> None:
    assert what in ask(api, path, status)["message"], path


def test_required_facts_that_were_not_sent() -> None:
    """An object that cannot have the published form is not returned; the message names what is missing."""
    whole, *rest = blocks()[:4]
    assert len(whole.txs) and all(each.txs for each in rest)
    lacks: list[tuple[str, dict[str, Any]]] = [
        ("details", {"details": None}),
        ("the fee", {"fee": None}),
        ("the size of the tr", {"size": None}),
    ]
    poor = [
        replace(block, txs=[replace(block.txs[0], **less), *block.txs[1:]])
        for block, (_, less) in zip(rest, lacks, strict=True)
    ]
    with short_folder() as folder, served(folder, before(), whole, poor[0]) as api:
        ask(api, f"/txs/{whole.txs[0].txid.hex()}")
        assert ask(api, "/epochs/latest")["fees"] != "0"
        feed(api, *poor[1:])
        for block, (what, _) in zip(poor, lacks, strict=True):
            refused(api, f"/txs/{block.txs[0].txid.hex()}", 501, what)
            for tx in block.txs[1:]:
                ask(api, f"/txs/{tx.txid.hex()}")
        assert ask(api, f"/blocks/{poor[1].height}")["fees"] is None
        refused(api, "/epochs/latest", 501, "the fees of all transactions in this epoch")
        last = poor[-1]
        block = replace(last, height=last.height + 1, slot=(last.slot or 0) + 1, hash=b"\x02" * 32, prev_hash=last.hash)
        feed(api, replace(block, txs=[], size=None, issuer=None))
        refused(api, "/blocks/latest", 501, "the size of the block")
        refused(api, f"/blocks/{last.height}/next", 501, "the size of the block")
        assert ask(api, f"/blocks/{last.height}")["slot_leader"].startswith("pool1")


def test_the_sums_of_an_epoch_end_at_the_first_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get turns while they are made, and known ones are not made again."""
    read, turns, ages = list[int](), Turns(), list[int]()
    unknown = 120

    def made(_: object, ordinal: int) -> tuple[int, int | None]:
        read.append(ordinal)
        return 2, None if ordinal == unknown else 1

    def block(ordinal: int) -> SimpleNamespace:
        return SimpleNamespace(hash=b"%d" % ordinal, slot=ordinal, txs=1)

    def shot(tip: int) -> Any:
        made_up = SimpleNamespace(block=block, stored=SimpleNamespace(block=block), tip=lambda: block(tip))
        return SimpleNamespace(**vars(made_up), state=SimpleNamespace(tip=tip), check_age=lambda: ages.append(1))

    monkeypatch.setattr(network, "sums", made)
    chain = network.Chain("preview", None)
    found = anyio.run(chain.epoch, shot(100), turns)
    assert found is not None and (found["output"], found["fees"], found["tx_count"]) == ("200", "100", 100)
    assert len(read) == 100 and len(ages) > 5
    for tip in (150, 160):
        with pytest.raises(Refused, match="the fees of all transactions"):
            anyio.run(chain.epoch, shot(tip), turns)
        assert read[100:] == [*range(101, unknown + 1)]


def test_outputs_that_were_never_stored() -> None:
    """What a transaction deposits is not known if the chain was fed from the middle."""
    first = next(block for block in blocks() if block.txs)
    with short_folder() as folder, served(folder, first) as api:
        refused(api, f"/txs/{first.txs[0].txid.hex()}", 501, "some of them were never stored")


def test_a_pending_transaction_without_bytes(frost: Api) -> None:
    raw = transaction(*live()[:2])
    tx = replace(read_transaction(raw), raw=None)
    feed(frost, TxSubmitted(tx=tx))
    refused(frost, f"/mempool/{tx.txid.hex()}", 501, "the bytes of the transaction")


def test_a_byron_transaction_has_the_fee_that_is_left(frost: Api) -> None:
    first, *_ = live()
    output = Output(first.output.address, first.output.value - 171_000)
    tx = Tx(b"\x09" * 32, [(first.txid, first.number)], [output], size=200, details=Details())
    tip = blocks()[-1]
    block = replace(tip, height=tip.height + 1, slot=(tip.slot or 0) + 20, hash=b"\x01" * 32, prev_hash=tip.hash)
    feed(frost, replace(block, era="byron", txs=[tx]))
    found = ask(frost, f"/txs/{tx.txid.hex()}")
    assert (found["fees"], found["deposit"], found["utxo_count"]) == ("171000", "0", 2)


@pytest.mark.parametrize("history", [True, False])
def test_a_transaction_below_the_rollback_window(history: bool) -> None:
    """With the index `history` it is complete, also what has been spent since; otherwise the message says why not."""
    chain = blocks()
    spent = {outpoint for block in chain for tx in block.txs for outpoint in tx.inputs}
    txs = [tx for block in chain[:20] for tx in block.txs if (tx.txid, 0) in spent]
    gone = next(tx for tx in txs if all((tx.txid, n) in spent for n in range(len(tx.outputs))))
    old = next(tx for tx in txs if not all((tx.txid, n) in spent for n in range(len(tx.outputs))))
    utxo = {"rollback_window": 4, "prune_depth": 4, "index": {"history": history}}
    with short_folder() as folder, served(folder, before(), *chain, utxo=utxo) as api:
        until(lambda: api.ask("/api/v1/status").json()["utxo"]["prune_backlog_blocks"], lambda blocks: blocks == 0)
        for tx in (old, gone) if history else ():
            found = ask(api, f"/txs/{tx.txid.hex()}")
            assert found["output_amount"][0]["quantity"] == str(sum(output.value for output in tx.outputs))
            assert tx.details and found["redeemer_count"] == tx.details.redeemer_count
        if not history:
            refused(api, f"/txs/{old.txid.hex()}", 404, "utxo.index.history")
            refused(api, f"/txs/{gone.txid.hex()}", 404, "not been found")
        assert ask(api, f"/blocks/{chain[1].height}")["fees"] == str(sum(tx.fee or 0 for tx in chain[1].txs))


def test_a_datum_that_is_nested_too_deeply(frost: Api) -> None:
    datum = b"\x81" * 400 + b"\x01"
    tip = blocks()[-1]
    block = replace(tip, height=tip.height + 1, slot=(tip.slot or 0) + 20, hash=b"\x01" * 32, prev_hash=tip.hash)
    feed(frost, replace(block, txs=[Tx(b"\x09" * 32, [], [Output(TO, 5, inline_datum=datum)])]))
    path = f"/scripts/datum/{blake2b(datum, digest_size=32).hexdigest()}"
    refused(frost, path, 501, "/cbor has its bytes")
    assert ask(frost, f"{path}/cbor") == {"cbor": datum.hex()}


@needs_npm
def test_the_documentation_names_what_is_null() -> None:
    """Each path with a field that is null although the schema requires a value is in the list of differences."""
    listed = (installed.ROOT / "docs" / "clients.md").read_text().partition("**Values that nothing reports are null")[2]
    listed = listed.partition("- **")[0]
    for path, names in NOT_KNOWN.items():
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
        found = read_extras(cbor2.dumps(fields))
        assert found.metadata == [(label, cbor2.dumps({label: value})) for label, value in metadata.items()]


def test_redeemers_as_a_map() -> None:
    redeemers = {(2, 1): [42, [1, 2]], (5, 0): [[], [3, 4]]}
    raw = cbor2.dumps([{}, {5: redeemers}, None])
    assert read_extras(raw) == Extras([Redeemer("cert", 1, 1, 2), Redeemer("propose", 0, 3, 4)], [])
    assert read_details(raw) == Details(redeemer_count=2)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([{}, {}], "2 fields"),
        ([{}, {5: [[0, 0, 1]]}, None], "a redeemer has 3 fields"),
        ([{}, {5: [[6, 0, 1, [1, 2]]]}, None], "another purpose or budget"),
        ([{}, {5: [[0, 0, 1, [1]]]}, None], "another purpose or budget"),
    ],
)
def test_malformed_bytes(fields: object, error: str) -> None:
    with pytest.raises(BlockError, match=error):
        read_extras(cbor2.dumps(fields))


def test_malformed_bodies() -> None:
    for body, error in (({4: [[]]}, "a certificate has no fields"), ({5: {b"": 2**64 - 1, b"x": 1}}, "too large")):
        with pytest.raises(BlockError, match=error):
            read_details(cbor2.dumps([body, {}, None]))


WHOLE = transaction(*list(coins().values())[:2])


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.booleans())
@example(0, bytes.fromhex("9f"), True)
def test_random_bytes(at: int, other: bytes, cut: bool) -> None:
    """Bytes that are cut off or changed are refused, or read: nothing else happens."""
    raw = WHOLE[:at] + other + (b"" if cut else WHOLE[at + len(other) :])
    for read in (read_extras, read_details):
        try:
            read(raw)
        except BlockError as error:
            assert error.offset <= len(raw) + 1


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
