"""The Ogmios front: what is answered here, what is passed on, and the order of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import sleep
from typing import Any

import cbor2
import httpx
import pytest
from chain_model import Coin
from hypothesis import given, settings
from hypothesis import strategies as st
from preview import CODEC, before, blocks, coins, own_listener, served
from questions import Api, short_folder
from raw_http import Connection, get
from stand_in import PARAMETERS, Node, node
from websockets.sync.client import ClientConnection, connect

from feeds.cardano.transaction import read_transaction

TIP = "queryNetwork/tip"
UTXO = "queryLedgerState/utxo"


class Served:
    """A daemon, where its front listens, and the node behind it."""

    def __init__(self, api: Api, port: int, upstream: Node) -> None:
        self.api, self.upstream = api, upstream
        self.http, self.ws = f"http://127.0.0.1:{port}/", f"ws://127.0.0.1:{port}/"

    def post(self, request: Any, status: int = 200) -> Any:
        answer = httpx.post(self.http, content=json.dumps(request), timeout=30)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def front() -> Iterator[Served]:
    port, listen = own_listener()
    with (
        node() as upstream,
        short_folder() as folder,
        served(folder, ogmios={"listen": listen}, upstream={"ogmios": upstream.url}) as api,
    ):
        api.ask("/health/live")
        yield Served(api, port, upstream)


def request(method: str, number: object = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "id": number} | ({"params": params} if params else {})


def talk(socket: ClientConnection, *requests: Any) -> list[Any]:
    for each in requests:
        socket.send(each if isinstance(each, str) else json.dumps(each))
    return [json.loads(socket.recv(timeout=30)) for _ in requests]


def utxo(coin: Coin) -> dict[str, Any]:
    output = coin.output
    value: dict[str, dict[str, int]] = {"ada": {"lovelace": output.value}}
    for policy, name, quantity in output.assets:
        value.setdefault(policy.hex(), {})[name.hex()] = quantity
    datum = {} if output.datum_hash is None else {"datumHash": output.datum_hash.hex()}
    datum = datum if output.inline_datum is None else {"datum": output.inline_datum.hex()}
    return {
        "transaction": {"id": coin.txid.hex()},
        "index": coin.number,
        "address": CODEC.write(output.address),
        "value": value,
        **datum,
    }


def some() -> Coin:
    live = [coin for coin in coins().values() if not coin.spend and coin.block.height and not coin.output.script_ref]
    return max(live, key=lambda coin: len(coin.output.assets))


def test_the_tip(front: Served) -> None:
    tip = blocks()[-1]
    result = {"slot": tip.slot, "id": tip.hash.hex()}
    assert front.post(request(TIP)) == {"jsonrpc": "2.0", "method": TIP, "result": result, "id": 1}
    with connect(front.ws) as socket:
        assert talk(socket, request(TIP, {"any": "id"})) == [
            {"jsonrpc": "2.0", "method": TIP, "result": result, "id": {"any": "id"}}
        ]
    assert TIP not in front.upstream.methods()


def test_outputs(front: Served) -> None:
    coin = some()
    own = [c for c in coins().values() if not c.spend and c.output.address == coin.output.address]
    found = front.post(request(UTXO, addresses=[CODEC.write(coin.output.address)]))["result"]
    assert [each for each in found if "script" not in each] == [utxo(c) for c in own if not c.output.script_ref]
    reference = {"transaction": {"id": coin.txid.hex()}, "index": coin.number}
    spent = next(c for c in coins().values() if c.spend)
    removed = {"transaction": {"id": spent.txid.hex()}, "index": spent.number}
    with connect(front.ws) as socket:
        [answer] = talk(socket, request(UTXO, outputReferences=[reference, removed]))
    assert answer["result"] == [utxo(coin)]
    for coin in (c for c in coins().values() if c.output.script_ref and not c.spend):
        place = {"transaction": {"id": coin.txid.hex()}, "index": coin.number}
        [each] = front.post(request(UTXO, outputReferences=[place]))["result"]
        assert each["script"]["language"].startswith(("native", "plutus:")) and each["script"]["cbor"]
    assert UTXO not in front.upstream.methods()
    malformed: list[dict[str, Any]] = [{"addresses": ["x"]}, {"addresses": 1}, {"outputReferences": [{"index": 1}]}]
    places = [{"transaction": {"id": "0"}, "index": 0}, {"transaction": {"id": "00"}, "index": 0}]
    places += [reference | {"index": index} for index in (-1, 65_536, "0", 0.0, True, None)]
    malformed += [{"outputReferences": [place]} for place in places]
    for params in (*malformed, {"other": []}):
        assert front.post(request(UTXO, **params), 400)["error"]["code"] == -32602


def test_other_requests_are_passed_on_in_order(front: Served) -> None:
    with connect(front.ws) as socket:
        queries = [
            *(request("queryLedgerState/epoch", 1), request(TIP, 2), request("nothing/known", 3), "not JSON"),
            *(request("queryLedgerState/protocolParameters", 4), request(TIP, 5)),
        ]
        answers = talk(socket, *queries)
    assert [answer.get("id") for answer in answers] == [1, 2, 3, None, 4, 5]
    assert answers[0]["result"] == 13 and answers[4]["result"] == PARAMETERS
    assert answers[2]["error"] == {"code": -32601, "message": "no method nothing/known"}
    assert answers[3]["error"]["code"] == -32600
    assert front.post(request("queryLedgerState/epoch", "x")) == {
        "jsonrpc": "2.0",
        "method": "queryLedgerState/epoch",
        "id": "x",
        "result": 13,
    }
    assert front.post(request("nothing/known"), 400)["error"]["code"] == -32601


def test_requests_on_an_acquired_state_are_passed_on(front: Served) -> None:
    queries = request(UTXO, addresses=[CODEC.write(some().output.address)])
    with connect(front.ws) as socket:
        talk(socket, request("acquireLedgerState", 1), queries, request("releaseLedgerState", 2), queries)
    assert front.upstream.methods()[-3:] == ["acquireLedgerState", UTXO, "releaseLedgerState"]


@pytest.mark.parametrize("over", ["ws", "http"])
def test_submitted_transactions_are_pending(front: Served, over: str) -> None:
    live = [coin for coin in coins().values() if not coin.spend and coin.block.height]
    coin = live[0 if over == "ws" else 1]
    body = {0: [[coin.txid, coin.number]], 1: [{0: coin.output.address, 1: coin.output.value - 5}], 2: 5}
    raw = cbor2.dumps([body, {}, True, None])
    queries = request("submitTransaction", transaction={"cbor": raw.hex()})
    if over == "ws":
        with connect(front.ws) as socket:
            [answer] = talk(socket, queries)
    else:
        answer = front.post(queries)
    txid = read_transaction(raw).txid.hex()
    assert answer["result"]["transaction"]["id"] == txid
    assert front.api.get(f"/api/v1/txs/{txid}")["status"] == "unmined"


def test_several_posts_on_one_connection(front: Served) -> None:
    body = json.dumps(request(TIP)).encode()
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
    with Connection(int(front.ws.rsplit(":", 1)[1].rstrip("/"))) as connection:
        for _ in range(3):
            connection.send(head + b"\r\n" + body)
            assert connection.answer().status == 200
            for piece in (head, b"\r\n", body[:5], body[5:]):
                connection.send(piece)
                sleep(0.01)
            assert connection.answer().status == 200
            connection.send((head + b"\r\n" + body) * 2 + get())
            assert [connection.answer().status for _ in range(3)] == [200, 200, 404]
            connection.send(head + b"Expect: 100-continue\r\n\r\n")
            assert connection.answer(bodyless=True).status == 100
            connection.send(body)
            assert connection.answer().status == 200
    for more, status, code in (
        (b"Content-Length: 300000\r\n", 413, "body_not_accepted"),
        (b"Transfer-Encoding: chunked\r\n", 411, "length_required"),
    ):
        with Connection(int(front.ws.rsplit(":", 1)[1].rstrip("/"))) as connection:
            connection.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
            answer = connection.answer()
            assert (answer.status, answer.error()) == (status, code)


def test_other_http_requests(front: Served) -> None:
    assert httpx.get(front.http).status_code == 405
    assert httpx.post(f"{front.http}else", content="{}").status_code == 404
    assert httpx.post(front.http, content="[]").status_code == 400
    assert httpx.options(front.http).status_code == 200


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "é", "00" * 32, "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["transaction", "id", "index", "addresses", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)
METHODS = st.sampled_from([TIP, UTXO, "submitTransaction", "evaluateTransaction", "queryLedgerState/epoch"])
NAMES = st.sampled_from(["addresses", "outputReferences", "transaction", "other"])


@settings(max_examples=100, deadline=None)
@given(METHODS | VALUES, st.dictionaries(NAMES, VALUES, max_size=2) | VALUES, VALUES)
def test_random_requests(front: Served, method: object, params: object, number: object) -> None:
    """Every request is answered, with its id; what the daemon itself answers is an output or an error."""
    sent = {"jsonrpc": "2.0", "method": method, "params": params, "id": number}
    answer = httpx.post(front.http, content=json.dumps(sent), timeout=30)
    content = answer.json()
    assert answer.status_code in (200, 400, 503) and ("error" in content) == (answer.status_code != 200), content
    if isinstance(method, str):
        assert content["id"] == json.loads(json.dumps(number))
    if method == UTXO and answer.status_code == 200:
        assert isinstance(content["result"], list)


def test_without_a_node() -> None:
    port, listen = own_listener()
    with short_folder() as folder, served(folder, before(), *blocks()[:2], ogmios={"listen": listen}) as api:
        api.ask("/health/live")
        with connect(f"ws://127.0.0.1:{port}/") as socket:
            here, away = talk(socket, request(TIP), request("queryLedgerState/epoch", 2))
        assert here["result"]["slot"] == blocks()[1].slot
        assert "upstream.ogmios" in away["error"]["message"] and away["id"] == 2
        away = httpx.post(f"http://127.0.0.1:{port}/", content=json.dumps(request("queryLedgerState/epoch")))
        assert away.status_code == 503 and "upstream.ogmios" in away.json()["error"]["message"]
