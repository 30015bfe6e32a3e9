"""How far requests go ahead, how the daemon hears of the network, and what a server does wrong."""

import ssl
from pathlib import Path
from time import monotonic, sleep

import pytest
from certificates import self_signed
from ogmios_messages import Json
from ogmios_server import chain_of, serving
from patience import until
from test_ogmios_blocks import made_output, made_tx
from test_ogmios_chain import blocks, fails, follow, heights

from feeds.cardano import ogmios_session
from feeds.cardano.ogmios_session import shown
from handlers.events import Hello


def test_requests_are_pipelined_up_to_a_bound() -> None:
    with serving(blocks(600)) as server:
        follow(server.url, to_height=600)
        assert 40 <= server.most_ahead <= 100


def test_fewer_large_blocks_are_requested_ahead() -> None:
    chain = blocks(60, nonce="x" * 2_000_000)
    with serving(chain) as server:
        ahead: list[int] = []
        server.on_answer = lambda n: ahead.append(server.ahead)
        follow(server.url, to_height=60)
    assert max(ahead[40:]) <= 10


def test_a_slow_daemon_bounds_the_requests() -> None:
    with serving(blocks(600)) as server:
        most: list[int] = []
        taken = 0

        def slowly() -> None:
            nonlocal taken
            taken += 1
            if taken == 50:
                sleep(0.2)
                most.append(server.answered)

        follow(server.url, to_height=600, slowly=slowly)
    assert most[0] <= 50 + 110


def test_the_network_height_is_sent_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = blocks(50)
    with serving(chain) as server:
        server.tip_ahead = 1000
        (first, *others) = follow(server.url, to_height=50, hellos=True)
        assert isinstance(first, Hello) and first.network_tip is not None and first.network_tip.height == 1050
        assert not any(isinstance(each, Hello) for each in others), "not for every block"
        server.on_answer = lambda n: setattr(server, "tip_ahead", 1000 + n)
        renewed = [each for each in follow(server.url, to_height=50, hellos=True) if isinstance(each, Hello)]
        assert len(renewed) == 1, "nor for every change"
        monkeypatch.setattr("feeds.cardano.ogmios._RENEW_S", 0.0)
        renewed = [each for each in follow(server.url, to_height=50, hellos=True) if isinstance(each, Hello)]
        assert len(renewed) > 40
        (first, *_) = follow(server.url, to_height=50, hellos=True, known_tip=5000)
        assert isinstance(first, Hello) and first.network_tip is not None and first.network_tip.height == 5000


def fault(code: int, message: str) -> Json:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message, "data": [1]}, "id": "id?"}


PLACE = "$.result.block.transactions[0]"
BACKWARD = {"direction": "backward", "point": {"slot": 5, "id": "xyz"}, "tip": "origin"}
WRONG: list[tuple[bytes | Json, str]] = [
    (fault(-32603, "Internal error."), "nextBlock: Internal error. (code -32603)"),
    ({"result": BACKWARD}, "not hex - at `$.result.point.id`"),
    *((bad, "an answer: ") for bad in (b"", b"{", b"[1]", b"null", b'{"result":{"direction":"forward","block":5}}')),
]


@pytest.mark.parametrize(("answer", "message"), WRONG)
def test_wrong_answers_are_one_error_line(answer: bytes | Json, message: str) -> None:
    with serving(blocks(9)) as server:
        server.instead[3] = answer
        assert fails(server.url).startswith(f"{server.url}: {message}")


@pytest.mark.parametrize(
    ("tx", "message"),
    [
        (made_tx(spends="something"), f"Invalid enum value 'something' - at `{PLACE}.spends`"),
        (made_tx(made_output(datum="d8798")), f"not hex - at `{PLACE}.outputs[0].datum`"),
    ],
)
def test_errors_name_the_block(tx: Json, message: str) -> None:
    chain = blocks(9)
    with serving(chain[:4] + chain_of([dict(chain[4].block, transactions=[tx])], after=chain[3])) as server:
        assert fails(server.url) == f"{server.url}: block 5 {chain[4].id}: {message}"


def test_an_answer_over_the_limit_ends_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ogmios_session, "_LONGEST", 5000)
    with serving(blocks(3) + blocks(3, blocks(3)[-1], nonce="x" * 6000)) as server:
        assert fails(server.url) == f"{server.url}: an answer is longer than 5000 bytes"


def test_a_server_that_never_answers_ends_the_feed() -> None:
    notices: list[str] = []
    with serving(blocks(3)) as server:
        url = server.url
    assert fails(url, patience_s=0.5, notices=notices) == f"{url}: Connection refused"
    assert notices[0].startswith("without --genesis")
    assert notices[1:] == [f"{url}: Connection refused; trying again in {pause} s" for pause in ("0.2", "0.5")]


def test_every_answer_resets_the_time_limit() -> None:
    with serving(blocks(40)) as server:
        server.on_answer = lambda n: server.drop() if n % 4 == 0 and n < 20 else None
        began = monotonic()
        assert heights(follow(server.url, to_height=40, patience_s=0.4)) == list(range(1, 41))
        assert monotonic() - began > 0.8


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1337", "ws://", "", "ws://[::1", "ws://h:port"])
def test_malformed_addresses_are_refused(url: str) -> None:
    assert "not a WebSocket URL, such as ws://127.0.0.1:1337" in fails(url, patience_s=0.1)


def test_errors_do_not_show_the_password() -> None:
    assert shown("wss://me:secret@ogmios.example:443/a?b=c") == "wss://ogmios.example:443/a?b=c"
    assert "secret" not in fails("ws://me:secret@127.0.0.1:1/", patience_s=0.1)


@pytest.mark.parametrize(("status", "again"), [(404, False), (451, False), (500, True), (503, True)])
def test_http_errors_of_the_handshake(status: int, again: bool) -> None:
    notices: list[str] = []
    with serving(blocks(3)) as server:
        server.http_status = status
        what = fails(server.url, patience_s=0.1, notices=notices)
    assert what == f"{server.url}: the server answered with HTTP status {status}"
    assert any("trying again" in line for line in notices) == again


def test_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with serving(blocks(20), tls) as server:
        assert server.url.startswith("wss://")
        what = fails(server.url)
        assert what.startswith(f"{server.url}: the server's certificate: ") and "self" in what
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert heights(follow(server.url, to_height=20)) == list(range(1, 21))


def test_the_feed_closes_its_connection() -> None:
    with serving(blocks(200)) as server:
        follow(server.url, most=5)
        until(lambda: not server.clients)
