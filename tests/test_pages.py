"""The two pages in a real Chromium, of a real daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import pytest
from browser import Browser, browser
from daemons import Client, Daemon, Message, home, running, statuses
from patience import until
from questions import Web, free_port

from bench.sample import messages
from daemon.http import pages
from handlers import wire

WIDTHS = (1280, 360)
MARKUP = "<i>preview</i>"  # a network may be called anything
RICH = "60" + "ab" * 28
TXID, SPARSE = "cd" * 32, "ce" * 32
TOKEN = "a-long-random-text"
JSON = "application/json"


def get(port: int, path: str) -> tuple[int, httpx.Headers, Any]:
    with Web(port) as web:
        answer = web.ask(path)
    return (
        answer.status_code,
        answer.headers,
        answer.json() if answer.headers["content-type"] == JSON else answer.content,
    )


def genesis_output(txid: str, index: int) -> Message:
    rare = ["ef" * 28, b"<img src=x>".hex(), (1 << 63) + index]
    return {"txid": txid, "index": index, "output": {"address": RICH, "value": (1 << 53) + 1, "assets": [rare]}}


def chain(blocks: int) -> list[Message]:
    """Return the sample chain as plain messages, with an address that holds sixty outputs more than it can show."""
    plain = [json.loads(wire.encode(message, "json")) for message in messages(blocks, txs=5)]
    plain[0]["outputs"] += [genesis_output(TXID, index) for index in range(60)] + [genesis_output(SPARSE, 5)]
    return [{name: value for name, value in message.items() if name != "seq"} for message in plain]


class FedPage:
    """A daemon that is fed, and a window with its page."""

    def __init__(self, port: int, client: Client, window: Browser) -> None:
        self.port, self.window = port, window
        self.url = f"http://127.0.0.1:{port}"
        self._client = client
        self._chain = chain(60)
        self._fed = 0

    def feed(self, count: int) -> Message:
        part = self._chain[self._fed : self._fed + count]
        assert len(part) == count
        assert set(statuses(self._client.feed(part))) <= {"accepted", "applied", "rolled_back"}
        self._fed += count
        return part[-1]

    def roll_back(self) -> Message:
        last, before = self._chain[self._fed - 1], self._chain[self._fed - 2]
        back = {"type": "Rollback", "to": {"slot": before["slot"], "hash": before["hash"]}}
        assert statuses(self._client.feed([back, last])) == ["rolled_back", "applied"]
        return last

    def status(self) -> Any:
        return get(self.port, "/api/v1/status")[2]

    def look(self, page: str, width: int) -> Browser:
        self.window.shape(width)
        self.window.go(self.url + page)
        return self.window

    def search(self, text: str) -> None:
        title = self.window.text("#found-title")
        self.window.write("#query", text, enter=True)
        until(lambda: self.window.text("#found-title") != title)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory, window: Browser) -> Iterator[FedPage]:
    port = free_port()
    utxo = {"prune_depth": 4, "rollback_window": 8, "prune_batch_size": 100_000}
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("pages")
        daemon = stack.enter_context(running(folder, http=at(port), chain={"network": MARKUP}, utxo=utxo))
        get(port, "/health/live")
        seen = FedPage(port, stack.enter_context(daemon.client()), window)
        seen.feed(50)  # with the fork of three blocks in it
        yield seen


def at(port: int, **more: object) -> dict[str, object]:
    return {"workers": 1, "listen": f"127.0.0.1:{port}", **more}


@pytest.fixture(autouse=True)
def quiet(window: Browser) -> Iterator[None]:
    """No page logs an error, and none sends requests to another host than its own."""
    window.go("about:blank")
    window.complaints()
    window.requests()
    yield
    assert window.complaints() == []
    here = str(window.run("return location.origin"))
    queries = {url for url in window.requests() if not url.startswith(("data:", "about:"))}
    assert queries and all(url.startswith(f"{here}/") for url in queries), queries


def fits(window: Browser) -> bool:
    return bool(window.run("const e = document.documentElement; return e.scrollWidth <= e.clientWidth"))


def jumps(window: Browser) -> float:
    """Return how much of the page moved without having been asked to."""
    script = """
        return new Promise((tell) => {
          const sum = (list) => list.getEntries().reduce((all, one) => all + (one.hadRecentInput ? 0 : one.value), 0);
          new PerformanceObserver((list) => tell(sum(list))).observe({ type: "layout-shift", buffered: true });
          setTimeout(() => tell(0), 150);
        });
    """
    return float(window.run(script))


def shows_tip(window: Browser, tip: Message) -> None:
    until(lambda: window.text("#tip-hash") == tip["hash"])
    assert window.text("#tip-height") == f"{tip['height']:,}"
    assert window.text("#tip-slot") == f"{tip['slot']:,}"


def ada(lovelace: int) -> str:
    return f"{lovelace // 10**6:,}.{lovelace % 10**6:06} ADA"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_shows_the_status(fed: FedPage, width: int) -> None:
    window, status = fed.look("/", width), fed.status()
    shows_tip(window, status["tip"])
    until(lambda: window.text("#state-name") == "Ready")
    assert window.text("#plot-set .value") == f"{status['utxo']['unspent']:,}"
    assert window.text("#chain") == f"cardano · {MARKUP}"
    assert window.text("#floor") == f"{status['utxo']['rollback_floor']['height']:,} (slot {fed_slot(status):,})"
    assert window.text("#takeback") == "8 of 8 blocks"
    assert window.text("#indexes") == "address_hash, payment_credential"
    assert f"{status['utxo']['rows']['history_output']:,}" in window.text('#rows [data-name="history_output"]')
    assert fits(window)


def fed_slot(status: Any) -> int:
    return int(status["utxo"]["rollback_floor"]["slot"])


def test_the_page_follows_the_chain(fed: FedPage) -> None:
    window = fed.look("/", WIDTHS[-1])
    shows_tip(window, fed.status()["tip"])
    block = fed.feed(2)
    shows_tip(window, block)
    until(lambda: window.texts("#block-rows .height")[:1] == [f"{block['height']:,}"])
    assert window.texts("#block-rows tr:first-child td")[2] == "5"
    assert float(window.text("#plot-blocks .value")) > 0 < float(window.text("#plot-txs .value"))
    assert window.run("return document.querySelector('#plot-blocks .bars') !== null")
    assert window.text("#tip-age").endswith(("just now", "s ago"))
    assert jumps(window) < 0.02
    assert fits(window)


def test_the_page_shows_a_rollback(fed: FedPage) -> None:
    window = fed.look("/", WIDTHS[-1])
    until(lambda: window.texts("#other-rows li"))
    assert any("Rolled back 3 blocks: 42 → 39" in text for text in window.texts("#other-rows li"))
    height = fed.roll_back()["height"]
    until(
        lambda: any(f"Rolled back 1 block: {height} → {height - 1}" in text for text in window.texts("#other-rows li"))
    )
    until(lambda: window.texts("#block-rows .height")[:2] == [str(height)] * 2)
    assert "rolled back" in window.text("#block-rows tr.undone")
    assert window.run("return document.querySelector('#block-rows').rows[0].className") == ""


def newest(window: Browser) -> tuple[str, str]:
    script = """
        const listed = document.querySelector("#block-rows tr:not(.undone) .height");
        return [document.querySelector("#tip-height").textContent, listed?.textContent ?? ""];
    """
    tip, listed = window.run(script)
    return tip, listed


def test_an_idle_chain_shows_its_recent_blocks(tmp_path: Path, window: Browser) -> None:
    """What was committed before the daemon was started again is in the change log."""
    port, reported = free_port(), chain(60)
    with home(tmp_path, http=at(port), utxo={"prune_depth": 4, "rollback_window": 8}) as daemon:
        daemon.start()
        with daemon.client() as client:
            client.feed(reported)
        assert daemon.term() == 0
        daemon.start()
        get(port, "/health/live")
        window.shape(WIDTHS[-1])
        window.go(f"http://127.0.0.1:{port}/")
        until(lambda: window.texts("#block-rows .height"))
        assert newest(window) == ("60", "60")
        assert not window.shown("#no-blocks")
        assert len(window.texts("#block-rows tr.undone")) == 3
        assert any("Rolled back 3 blocks: 42 → 39" in text for text in window.texts("#other-rows li"))
        assert window.text("#tip-hash") == reported[-1]["hash"]
        assert fits(window)


def test_an_old_rollback_is_shown_with_newer_blocks(tmp_path: Path, window: Browser) -> None:
    port = free_port()
    with running(tmp_path, http=at(port)) as daemon, daemon.client() as client:
        client.feed(chain(700))
        get(port, "/health/live")
        window.go(f"http://127.0.0.1:{port}/")
        until(lambda: window.texts("#block-rows .height"))
        assert newest(window) == ("700", "700")
        assert window.texts("#block-rows .height")[-1] == "601"
        facts = get(port, "/api/v1/events")[2]
        assert len(facts) == 200 and {fact["type"] for fact in facts} == {"BlockCommitted"}
        assert ["Rolled back 3 blocks: 468 → 465" in text for text in window.texts("#other-rows li")] == [True]


def test_recent_blocks_keep_up_with_the_tip(tmp_path: Path, window: Browser) -> None:
    port, reported = free_port(), chain(600)
    with running(tmp_path, http=at(port)) as daemon, daemon.client() as client:
        get(port, "/health/live")
        client.hello(network_tip={"height": 600})
        client.feed(reported[:10])
        window.go(f"http://127.0.0.1:{port}/")
        until(lambda: window.texts("#block-rows .height"))
        seen = set()
        for start in range(10, len(reported), 60):
            client.feed(reported[start : start + 60])
            for _ in range(20):
                tip, listed = newest(window)
                assert tip == listed
                seen.add(tip)
                state = window.text("#state-text")  # of one answer: ten blocks are the limit of readiness
                behind = re.search(r"(\d+) blocks", state)
                assert state.startswith("Answers are fresh") == (behind is None or int(behind[1]) <= 10), state
                sleep(0.02)
        until(lambda: newest(window) == ("600", "600"))
        until(lambda: window.text("#state-text") == "Answers are fresh.")
        assert len(seen) > 2


def test_an_address_is_found_page_by_page(fed: FedPage) -> None:
    window = fed.look("/", WIDTHS[-1])
    _, _, (one,) = get(fed.port, f"/api/v1/addresses/{RICH}/utxos?count=1")
    fed.search(one["owner_addr"])
    until(lambda: window.shown("#found-body .balance strong"))
    assert window.text(".balance strong") == ada(61 * ((1 << 53) + 1))
    assert window.text(".balance span") == "in 61 unspent outputs"
    assert "<img src=x>" in window.text(".assets dt")
    assert window.text(".assets dd") == f"{61 * (1 << 63) + sum(range(60)) + 5:,}"
    assert window.texts("#found-body li .worth")[0].startswith(ada((1 << 53) + 1))
    assert len(window.texts("#found-body li")) == 25
    window.click(".turn button:nth-child(2)")
    until(lambda: "Outputs 26 to 50" in window.text(".turn"))
    window.click(".turn button:nth-child(2)")
    until(lambda: "Outputs 51 to 61" in window.text(".turn"))
    assert len(window.texts("#found-body li")) == 11
    window.click(".turn button:nth-child(1)")
    until(lambda: "Outputs 26 to 50" in window.text(".turn"))
    assert fits(window)


def test_outputs_and_transactions_are_found(fed: FedPage) -> None:
    window, made = fed.look("/", WIDTHS[-1]), fed.feed(1)["txs"][-1]
    fed.search(f"{made['txid']}#0")
    until(lambda: window.shown("#found-body li"))
    assert window.texts("#found-body li a")[0] == f"{made['txid']}#0"
    until(lambda: ada(made["outputs"][0]["value"]) in window.text("#found-body li .worth"))
    window.click("#found-body li details summary")
    until(lambda: "owner_payment_credential" in window.text("#found-body li .fields"))
    window.click("#found-body > p a")  # all outputs of this transaction
    until(lambda: window.text("#found-title") == f"Transaction {made['txid']}")
    until(lambda: window.text("#found-body .record .tag") == "mined")
    assert f"{len(made['outputs'])} output" in window.text("#found-body .record")
    names = [f"{made['txid']}#{index}" for index in range(len(made["outputs"]))]
    until(lambda: [text for text in window.texts("#found-body li a") if "#" in text] == names)
    spent = made["inputs"][0]
    fed.search(f"{spent[0]}#{spent[1]}")
    until(lambda: f"by {made['txid']}" in window.text("#found-body"))
    fed.search(SPARSE)
    until(lambda: window.text("#found-body p") == "1 output of this transaction is kept.")
    fed.search(TXID)
    until(lambda: window.text("#found-body p") == "60 outputs of this transaction are kept.")
    fed.search("ab" * 28)
    until(lambda: window.text(".balance span") == "in 61 unspent outputs")
    assert window.text("#found-title").startswith("Credential")
    assert fits(window)


def test_a_transaction_that_waits_is_found(fed: FedPage) -> None:
    window, waits = fed.look("/", WIDTHS[-1]), "77" * 32
    paid = {"txid": waits, "inputs": [], "outputs": [{"address": RICH, "value": 1}] * 2}
    assert statuses(fed._client.feed([{"type": "TxSubmitted", "tx": paid, "locked": True}])) == ["accepted"]
    fed.search(waits)
    until(lambda: "No block of the chain has this transaction" in window.text("#found-body"))
    assert window.texts("#found-body .record .tag") == ["unmined", "locked"]
    assert "2 outputs, 0 of them spent, waiting since block" in window.text("#found-body .record")
    window.click("#found-body .record summary")
    until(lambda: "unmined_since" in window.text("#found-body .record .fields"))
    assert fits(window)


def test_the_page_shows_what_was_not_found(fed: FedPage) -> None:
    window = fed.look("/", WIDTHS[-1])
    _, _, failure = get(fed.port, "/api/v1/addresses/addr1xyz/utxos")
    fed.search("addr1xyz")
    until(lambda: window.shown("#found-body .problem"))
    assert failure["message"].lower() in window.text(".problem").lower()
    fed.search("00" * 32 + "#7")
    until(lambda: "is not in the store: it was never created, or was spent and pruned" in window.text("#found-body"))
    fed.search("00" * 32)
    until(lambda: "No output of this transaction is here" in window.text("#found-body"))
    fed.search("60" + "00" * 28)
    until(lambda: "No unspent outputs" in window.text("#found-body"))
    assert fits(window)


def test_the_page_shows_an_empty_store_no_daemon_and_a_missing_token(tmp_path: Path, window: Browser) -> None:
    port = free_port()
    with home(tmp_path, http=at(port)) as daemon:
        daemon.start()
        get(port, "/health/live")
        window.shape(WIDTHS[-1])
        window.go(f"http://127.0.0.1:{port}/")
        until(lambda: window.text("#state-name") == "Empty store")
        assert window.text("#tip-height") == "–"
        daemon.term()
        until(lambda: window.text("#state-name") == "No answer")
        daemon.configure(http=at(port, token=TOKEN))
        daemon.start()
        until(lambda: window.shown("#token-dialog"))
        give_token(window, daemon)
        assert fits(window)


def test_the_page_shows_that_the_store_is_not_enabled(tmp_path: Path, window: Browser) -> None:
    port = free_port()
    with running(tmp_path, http=at(port), utxo={"enabled": False}):
        get(port, "/health/live")
        window.go(f"http://127.0.0.1:{port}/")
        until(lambda: "The UTXO store is not enabled in this daemon" in window.text("#state"))
        assert fits(window)


def give_token(window: Browser, daemon: Daemon) -> None:
    assert window.text("#state-name") == "Token needed"
    window.write("#token", "wrong", enter=True)
    until(lambda: window.text("#wrong") == "The daemon does not accept this token.")
    with daemon.client() as client:
        assert statuses(client.feed(chain(6)[:2])) == ["accepted", "applied"]
    window.write("#token", TOKEN, enter=True)
    until(lambda: window.text("#tip-height") == "1")
    assert not window.shown("#token-dialog")
    assert window.run("return sessionStorage.getItem('utxod.token')") == TOKEN
    window.run("sessionStorage.clear()")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_docs_list_every_route(fed: FedPage, width: int) -> None:
    window, (_, _, contract) = fed.look("/docs", width), get(fed.port, "/openapi.json")
    until(lambda: window.texts(".route h3"))
    assert window.texts(".route h3") == [f"GET{path}" for path in contract["paths"]]
    assert len(window.texts("#contents li")) == len(contract["paths"])
    for path, verbs in contract["paths"].items():
        route = f'.route[data-path="{path}"]'
        window.run("document.querySelector(arguments[0]).open = true", route)
        until(lambda route=route: window.shown(f"{route} form"))  # type: ignore[misc]
        names = [parameter["name"] for parameter in verbs["get"]["parameters"]]
        assert window.texts(f"{route} form label .mono") == names
        assert window.texts(f"{route} .answers .status") == sorted(verbs["get"]["responses"])
    utxo = (
        '.route[data-path="/api/v1/utxos/{tx_hash}/{index}"] .answers details:nth-of-type(1) .shape > ul > li > .name'
    )
    assert window.texts(utxo) == list(contract["components"]["schemas"]["Utxo"]["properties"])
    assert fits(window)
    window.write("#filter", "balance")
    shown = window.run("return [...document.querySelectorAll('.route')].filter(r => !r.hidden).length")
    assert shown == sum("balance" in path for path in contract["paths"])


def test_the_docs_try_a_route(fed: FedPage) -> None:
    window = fed.look("/docs", WIDTHS[-1])
    route = '.route[data-path="/api/v1/addresses/{address}/utxos"]'
    until(lambda: window.shown(route))
    window.click(f"{route} > summary")
    until(lambda: window.shown(f"{route} form"))
    window.write(f"{route} input[name=address]", RICH)
    window.write(f"{route} input[name=count]", "60", enter=True)
    until(lambda: window.shown(f"{route} .result .status"))
    status, headers, body = get(fed.port, f"/api/v1/addresses/{RICH}/utxos?count=60")
    assert window.text(f"{route} .result .status") == str(status)
    assert json.loads(window.text(f"{route} .result .body")) == body
    assert headers["x-tip-hash"] in window.texts(f"{route} .result .headers dd")
    assert f'"lovelace_amount": {(1 << 53) + 1}' in window.text(f"{route} .result .body")  # no number lost a digit
    window.click(f"{route} .outcome button")
    until(lambda: len(json.loads(window.text(f"{route} .result .body"))) == 1)
    window.click(f"{route} input[name=again]")
    window.click(f"{route} button.main")
    until(lambda: window.text(f"{route} .result .status") == "304")
    window.write(f"{route} input[name=cursor]", "nonsense", enter=True)
    until(lambda: window.text(f"{route} .result .status") == "400")
    assert "bad_parameter" in window.text(f"{route} .result .body")
    assert fits(window)


def test_a_page_may_load_and_run_nothing_else(fed: FedPage) -> None:
    for path, page in (("/", pages.operator()), ("/docs", pages.docs())):
        status, headers, body = get(fed.port, path)
        assert (status, body) == (200, page)
        assert headers["x-tip-hash"] == fed.status()["tip"]["hash"]
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert all(word.startswith("'sha256-") for kind in ("style-src", "script-src") for word in policy[kind].split())
        window = fed.look(path, WIDTHS[0])
        refused = (
            "try { document.body.innerHTML = '<i>'; return false } catch (error) { return error instanceof TypeError }"
        )
        assert window.run(refused)
        assert any("TrustedHTML" in complaint for complaint in window.complaints())
