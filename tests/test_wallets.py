"""Electrum and Esplora on a real chain, without a node: histories, proofs, sums, limits, bad requests."""

from __future__ import annotations

import json
import select
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from bcoin_node import free_ports
from certificates import self_signed
from daemons import Daemon, running, utxod
from electrum_client import Wallet, script_hash
from patience import patience, until
from real_data import lines, need

from feeds.bitcoin.block import decode_block
from handlers.events import BlockApplied, OutPoint

RUN = "bitcoin/testnet3-1-546.hex.xz"
BITCOIN = {"family": "bitcoin", "network": "testnet3"}
PORT, WEB = free_ports(2)
ESPLORA = {"enabled": True, "listen": f"127.0.0.1:{WEB}"}
Lists = dict[bytes, list[Any]]


@cache
def blocks() -> list[BlockApplied]:
    return [decode_block(bytes.fromhex(line), height) for height, line in enumerate(lines(need(RUN)), 1)]


def electrum(**limits: object) -> dict[str, Any]:
    own = {"enabled": True, "listen": f"127.0.0.1:{PORT}"} | limits
    return {"electrum": own, "utxo": {"index": {"history": True}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("electrum"), chain=BITCOIN, esplora=ESPLORA, **electrum()) as daemon:
        done = utxod("feed", "--config", daemon.config, "bitcoin-blocks", need(RUN))
        assert done.returncode == 0, done.stderr
        with Wallet(PORT):  # it listens
            yield daemon


@pytest.fixture
def wallet(daemon: Daemon) -> Iterator[Wallet]:
    with Wallet(PORT) as wallet:
        yield wallet


def expected() -> tuple[Lists, Lists]:
    """Return histories and unspent outputs by script, from the blocks alone."""
    scripts: dict[OutPoint, tuple[bytes, int, int]] = {}
    histories, unspent = Lists(), Lists()
    for block in blocks():
        for tx in block.txs:
            touched = [scripts[outpoint][0] for outpoint in tx.inputs if not tx.coinbase]
            for n, output in enumerate(tx.outputs):
                if output.spendable:
                    scripts[tx.txid, n] = output.address, output.value, block.height
                    touched.append(output.address)
            entry = {"tx_hash": tx.txid.hex(), "height": block.height}
            for script in dict.fromkeys(touched):
                histories.setdefault(script, []).append(entry)
    spent = {outpoint for block in blocks() for tx in block.txs if not tx.coinbase for outpoint in tx.inputs}
    for (txid, n), (script, value, height) in scripts.items():
        if (txid, n) not in spent:
            found = {"tx_hash": txid.hex(), "tx_pos": n, "height": height, "value": value}
            unspent.setdefault(script, []).append(found)
    return histories, unspent


def test_every_script_of_a_real_chain(wallet: Wallet) -> None:
    histories, unspent = expected()
    assert len(histories) > 500 and max(map(len, histories.values())) > 10
    keys = [script_hash(script) for script in histories]

    def ask(name: str) -> list[Any]:
        return wallet.call_all([(f"blockchain.scripthash.{name}", key) for key in keys])

    assert ask("get_history") == list(histories.values())
    assert ask("listunspent") == [unspent.get(script, []) for script in histories]
    sums = [sum(each["value"] for each in unspent.get(script, [])) for script in histories]
    assert ask("get_balance") == [{"confirmed": total, "unconfirmed": 0} for total in sums]
    assert ask("get_mempool") == [[]] * len(keys)


def test_a_status_is_the_hash_of_the_history(wallet: Wallet) -> None:
    script, history = next((script, found) for script, found in expected()[0].items() if len(found) > 3)
    text = "".join(f"{each['tx_hash']}:{each['height']}:" for each in history)
    key = script_hash(script)
    for _ in range(2):  # again: the subscription stands already
        assert wallet.call("blockchain.scripthash.subscribe", key) == sha256(text.encode()).hexdigest()
    assert wallet.call("blockchain.scripthash.subscribe", "00" * 32) is None
    assert wallet.call("blockchain.scripthash.unsubscribe", key) is True
    assert wallet.call("blockchain.scripthash.unsubscribe", key) is False


def test_where_each_output_was_created_and_spent(wallet: Wallet) -> None:
    heights = {tx.txid: block.height for block in blocks() for tx in block.txs}
    spenders = {place: tx.txid for block in blocks() for tx in block.txs if not tx.coinbase for place in tx.inputs}
    calls, expected = [], []
    for block in blocks():
        for tx in block.txs:
            for n in range(len(tx.outputs) + 1):
                calls.append(("blockchain.outpoint.get_status", tx.txid.hex(), n))
                status: dict[str, Any] = {"funder_height": block.height} if n < len(tx.outputs) else {}
                if by := spenders.get((tx.txid, n)):
                    status |= {"spender_txhash": by.hex(), "spender_height": heights[by]}
                expected.append(status)
    assert wallet.call_all(calls) == expected
    assert sum("spender_height" in status for status in expected) > 100
    assert wallet.call("blockchain.outpoint.get_status", KEY, 0, "0014" + "00" * 20) == {}
    assert wallet.call("blockchain.outpoint.subscribe", *calls[0][1:]) == expected[0]
    assert wallet.call("blockchain.outpoint.unsubscribe", *calls[0][1:]) is True


def root_by_branch(txid: str, branch: list[str], position: int) -> bytes:
    """Fold a merkle branch as a wallet does."""
    found = bytes.fromhex(txid)[::-1]
    for each in branch:
        other = bytes.fromhex(each)[::-1]
        pair = other + found if position & 1 else found + other
        found, position = sha256(sha256(pair).digest()).digest(), position >> 1
    return found


def test_merkle_branches_lead_to_the_roots_in_the_headers(wallet: Wallet) -> None:
    for block in [*blocks()[::9], max(blocks(), key=lambda block: len(block.txs))]:
        header = bytes.fromhex(wallet.call("blockchain.block.header", block.height))
        assert sha256(sha256(header).digest()).digest()[::-1] == block.hash
        for position, tx in enumerate(block.txs):
            txid = tx.txid.hex()
            proof = wallet.call("blockchain.transaction.get_merkle", txid, block.height)
            assert (proof["block_height"], proof["pos"]) == (block.height, position)
            assert root_by_branch(txid, proof["merkle"], position) == header[36:68]
            assert wallet.call("blockchain.transaction.id_from_pos", block.height, position) == txid
            both = wallet.call("blockchain.transaction.id_from_pos", block.height, position, True)
            assert both == {"tx_hash": txid, "merkle": proof["merkle"]}


def test_every_entry_of_a_history_is_proved_by_a_header(wallet: Wallet) -> None:
    entries = {(each["tx_hash"], each["height"]) for history in expected()[0].values() for each in history}
    assert len(entries) > 800
    places = sorted(entries, key=lambda place: place[1])
    headers = wallet.call_all([("blockchain.block.header", height) for _, height in places])
    proofs = wallet.call_all([("blockchain.transaction.get_merkle", *place) for place in places])
    for (txid, height), header, proof in zip(places, headers, proofs, strict=True):
        raw = bytes.fromhex(header)
        assert sha256(sha256(raw).digest()).digest()[::-1] == blocks()[height - 1].hash
        assert root_by_branch(txid, proof["merkle"], proof["pos"]) == raw[36:68]


def test_headers(daemon: Daemon) -> None:
    with Wallet(PORT) as old, Wallet(PORT, "1.6") as new:
        tip = old.call("blockchain.headers.subscribe")
        assert tip["height"] == 546
        joined = old.call("blockchain.block.headers", 540, 3000)
        assert (joined["count"], joined["max"], joined["hex"][-160:]) == (7, 2016, tip["hex"])
        listed = new.call("blockchain.block.headers", 540, 3000)
        assert listed["headers"] == [joined["hex"][at : at + 160] for at in range(0, 7 * 160, 160)]
        assert new.call("blockchain.block.headers", 547, 1) == {"count": 0, "max": 2016, "headers": []}


def test_versions_and_server_methods(daemon: Daemon) -> None:
    for wanted, agreed in [("1.4", "1.4"), (["1.4", "1.6"], "1.6"), (["1.3", "1.4.2"], "1.4"), (["1.4", "9"], "1.6")]:
        with Wallet(PORT, None) as wallet:
            assert wallet.call("server.version", "tests", wanted, "more")[1] == agreed
    with Wallet(PORT, None) as wallet:
        assert wallet.call("server.ping") is None and wallet.call("server.peers.subscribe") == []
        assert wallet.call("server.donation_address") == "" and "utxod" in wallet.call("server.banner")
        assert wallet.call("mempool.get_fee_histogram") == []
        features = wallet.call("server.features")
        assert features["hash_function"] == "sha256" and features["protocol_max"] == "1.6"
        assert features["genesis_hash"] == "000000000933ea01ad0ee984209779baaec3ced90fa3f408719526f8d77f4943"
        refused = wallet.ask("server.version", "tests", ["1.7", "2"])["error"]
        why = "unsupported protocol version: ['1.7', '2']; this server has 1.4 to 1.6"
        assert refused == {"code": 1, "message": why}


KEY = "ab" * 32


@pytest.mark.parametrize(
    ("method", "params", "code", "what"),
    [
        ("blockchain.nothing", [], -32601, "unknown method: blockchain.nothing"),
        ("blockchain.scripthash.get_history", [], -32602, "takes 1 parameters, not 0"),
        ("blockchain.scripthash.get_history", ["zz" * 32], -32602, "must consist of hexadecimal digits"),
        ("blockchain.scripthash.get_history", [KEY[2:]], -32602, "a script hash must have 64 hexadecimal digits"),
        ("blockchain.scripthash.get_history", [5], -32602, "a script hash must have 64 hexadecimal digits, not 5"),
        ("blockchain.scripthash.get_history", {"a": 1}, -32602, "must be a list"),
        ("blockchain.block.header", [-1], -32602, "height must be a non-negative integer, not -1"),
        ("blockchain.block.header", [True], -32602, "height must be a non-negative integer, not True"),
        ("blockchain.block.header", [547], 1, "there is no block of height 547"),
        ("blockchain.block.header", [5, 3], 1, "between the header's height, 5, and that of the tip, 546"),
        ("blockchain.block.headers", [1, "x"], -32602, "count must be a non-negative integer"),
        ("blockchain.transaction.get_merkle", [KEY, 5], 1, f"transaction {KEY} is not in block 5"),
        ("blockchain.transaction.id_from_pos", [5, 5], 1, "block 5 has 1 transactions, but none at position 5"),
        ("blockchain.transaction.id_from_pos", [5, 0, "yes"], -32602, "merkle must be true or false"),
        ("blockchain.transaction.get", [KEY], 2, "no node is configured (upstream.bitcoin)"),
        ("blockchain.transaction.broadcast", ["00"], 2, "no node is configured (upstream.bitcoin)"),
        ("blockchain.transaction.broadcast", ["0"], -32602, "raw_tx must consist of hexadecimal digits"),
        ("blockchain.transaction.broadcast_package", [[]], -32602, "a list of 1 to 25 transactions"),
        ("blockchain.estimatefee", [6, "FAST"], -32602, "mode must be CONSERVATIVE or ECONOMICAL"),
        ("blockchain.estimatefee", [6], 2, "no node is configured (upstream.bitcoin)"),
        ("blockchain.outpoint.subscribe", [KEY], -32602, "takes 2 to 3 parameters, not 1"),
        ("blockchain.outpoint.subscribe", [KEY, -1], -32602, "txout_idx must be a non-negative integer, not -1"),
        ("blockchain.outpoint.get_status", [KEY, 0, "xy"], -32602, "script must consist of hexadecimal digits"),
        ("server.version", ["x", "two"], -32602, "'two' is not a protocol version"),
    ],
)
def test_malformed_requests_are_refused(wallet: Wallet, method: str, params: Any, code: int, what: str) -> None:
    wallet.raw(json.dumps({"id": "a", "method": method, "params": params}).encode() + b"\n")
    error = wallet.receive()["error"]
    assert error["code"] == code and what in error["message"], error
    assert wallet.call("server.ping") is None


def test_batches_and_lines_in_pieces(wallet: Wallet) -> None:
    calls = [{"id": n, "method": "server.ping"} for n in range(3)] + [{"method": "server.ping"}, 7]
    whole = json.dumps(calls).encode() + b"\n\n"
    for at in range(0, len(whole), 11):
        wallet.raw(whole[at : at + 11])
    answers = wallet.receive()
    assert [answer["id"] for answer in answers] == [0, 1, 2, None]
    assert answers[3]["error"]["code"] == -32600
    wallet.raw(b"[]\n")
    assert wallet.receive()["error"] == {"code": -32600, "message": "a list must have 1 to 10000 calls, not 0"}


@pytest.mark.parametrize("line", [b"{", b"[" * 100_000, b"\xff\xfe", b'{"id":1e999}{'])
def test_malformed_json_ends_only_its_session(daemon: Daemon, line: bytes) -> None:
    with Wallet(PORT) as wallet, Wallet(PORT) as other:
        wallet.raw(line + b"\n")
        assert wallet.receive()["error"]["code"] == -32700
        assert wallet.receive() is None
        assert other.call("server.ping") is None


def test_an_endless_line_is_refused(daemon: Daemon) -> None:
    with Wallet(PORT) as wallet:
        try:
            for _ in range(14):
                wallet.raw(b" " * (1 << 20))
        except (BrokenPipeError, ConnectionResetError):
            return
        answer = wallet.receive()
        assert answer is None or "longer than" in answer["error"]["message"]


def test_a_client_that_does_not_read_is_not_answered_ahead(daemon: Daemon) -> None:
    script = max((found := expected()[0]), key=lambda script: len(found[script]))
    call = {"id": 1, "method": "blockchain.scripthash.get_history", "params": [script_hash(script)]}
    line = json.dumps([call] * 2_000).encode() + b"\n"
    with Wallet(PORT) as wallet, Wallet(PORT) as other:
        wallet.socket.setblocking(False)
        sent = 0
        while select.select([], [wallet.socket], [], patience(1.5))[1]:
            sent += wallet.socket.send(line[sent % len(line) :])
            assert sent < 64 << 20, "the server reads on"
        assert other.call("server.ping") is None
        wallet.socket.settimeout(patience(20))
        for _ in range(3):  # and goes on as the client reads
            answers = wallet.receive()
            assert len(answers) == 2_000 and answers[0]["result"] == found[script]


def test_sessions_and_subscriptions_are_limited(tmp_path: Path) -> None:
    limits = electrum(max_sessions=2, max_subscriptions=5, max_subscriptions_per_session=3)
    (port,) = free_ports(1)
    limits["electrum"]["listen"] = f"127.0.0.1:{port}"
    with running(tmp_path, chain=BITCOIN, **limits), Wallet(port) as one:
        with Wallet(port) as two:
            with Wallet(port, None) as three:
                assert three.receive() is None
            for n in range(3):
                one.call("blockchain.scripthash.subscribe", f"{n:064x}")
            refused = one.ask("blockchain.scripthash.subscribe", f"{3:064x}")["error"]
            assert refused == {"code": 1, "message": "this session already has 3 subscriptions, the limit"}
            for n in range(2):
                two.call("blockchain.scripthash.subscribe", f"{n:064x}")
            assert "already has 5 subscriptions" in two.ask("blockchain.scripthash.subscribe", KEY)["error"]["message"]
            assert one.call("blockchain.scripthash.unsubscribe", f"{0:064x}") is True
            assert two.call("blockchain.scripthash.subscribe", KEY) is None

        def again() -> bool:
            with Wallet(port, None) as four:
                four.raw(b'{"id":0,"method":"server.ping"}\n')
                return four.receive() is not None

        until(again, why="the place of a session that left is not given to another one")


def test_sessions_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port, tls_port = free_ports(2)
    own = {"listen": f"127.0.0.1:{port}", "tls_listen": f"127.0.0.1:{tls_port}"}
    tables = electrum(**own, certificate=str(certificate), private_key=str(key))
    with running(tmp_path, chain=BITCOIN, **tables) as daemon, Wallet(port):
        done = utxod("feed", "--config", daemon.config, "bitcoin-blocks", need(RUN))
        assert done.returncode == 0, done.stderr
        histories, _ = expected()
        calls = [("blockchain.scripthash.get_history", script_hash(script)) for script in histories]
        trust = ssl.create_default_context(cafile=certificate)
        with socket.create_connection(("127.0.0.1", tls_port)), Wallet(tls_port, tls=trust) as wallet:
            until(lambda: wallet.call("blockchain.headers.subscribe")["height"], lambda found: found == len(blocks()))
            assert wallet.call_all(calls) == list(histories.values())
            with pytest.raises(ssl.SSLCertVerificationError):
                Wallet(tls_port, tls=ssl.create_default_context())
            with Wallet(tls_port, None) as plain:
                plain.raw(b'{"id":0,"method":"server.ping"}\n')
                assert plain.receive() is None
            assert wallet.call("server.ping") is None
        until(lambda: daemon.events().count("electrum_handshake_failed") >= 2)
        assert "Traceback" not in daemon.log_text()


def ask(path: str, body: bytes | None = None) -> tuple[int, str]:
    method = "GET" if body is None else "POST"
    answer = httpx.request(method, f"http://127.0.0.1:{WEB}{path}", content=body, timeout=patience(20))
    return answer.status_code, answer.text


def get(path: str) -> Any:
    status, text = ask(path)
    assert status == 200, text
    return json.loads(text)


def test_esplora_sums_and_outputs_of_scripts(wallet: Wallet) -> None:
    histories, unspent = expected()
    busiest = sorted(histories, key=lambda script: len(histories[script]))[-12:]
    values = [(each.address, each.value) for block in blocks() for tx in block.txs for each in tx.outputs]
    for script in [*busiest, *list(histories)[::60]]:
        key = sha256(script).hexdigest()
        found = get(f"/scripthash/{key}")
        paid = [value for address, value in values if address == script]
        left = [each["value"] for each in unspent.get(script, [])]
        assert found == {
            "scripthash": key,
            "chain_stats": {
                "funded_txo_count": len(paid),
                "funded_txo_sum": sum(paid),
                "spent_txo_count": len(paid) - len(left),
                "spent_txo_sum": sum(paid) - sum(left),
                "tx_count": len(histories[script]),
            },
            "mempool_stats": dict.fromkeys(found["chain_stats"], 0),
        }
        listed = get(f"/api/scripthash/{key}/utxo")
        assert [(each["txid"], each["vout"], each["value"], each["status"]["block_height"]) for each in listed] == [
            (each["tx_hash"], each["tx_pos"], each["value"], each["height"]) for each in unspent.get(script, [])
        ]


def test_esplora_spenders(wallet: Wallet) -> None:
    spenders = {
        outpoint: (tx.txid.hex(), n, block.height)
        for block in blocks()
        for tx in block.txs
        for n, outpoint in enumerate(() if tx.coinbase else tx.inputs)
    }
    met = set()
    for tx in [tx for block in blocks() for tx in block.txs][::20]:
        outspends = get(f"/tx/{tx.txid.hex()}/outspends")
        assert len(outspends) == len(tx.outputs)
        for n, found in enumerate(outspends):
            by = spenders.get((tx.txid, n))
            met.add(by is None)
            assert found["spent"] == (by is not None)
            if by is not None:
                assert (found["txid"], found["vin"], found["status"]["block_height"]) == by
        assert get(f"/tx/{tx.txid.hex()}/outspend/0") == outspends[0]
    assert met == {True, False}


def test_esplora_blocks(wallet: Wallet) -> None:
    assert ask("/blocks/tip/height") == (200, "546")
    tip = ask("/blocks/tip/hash")[1]
    newest = get("/blocks")
    assert [each["height"] for each in newest] == list(range(546, 536, -1)) and newest[0]["id"] == tip
    assert get("/blocks/429") == [json.loads(ask(f"/block/{each['id']}")[1]) for each in get("/blocks/429")]
    block = blocks()[428]
    header, found = block.header or b"", get(f"/block/{block.hash.hex()}")
    times = sorted(int.from_bytes((each.header or b"")[68:72], "little") for each in blocks()[418:429])
    assert found == {
        "id": block.hash.hex(),
        "height": 429,
        "version": 1,
        "timestamp": block.time,
        "tx_count": len(block.txs),
        "size": block.size,
        "weight": None,
        "merkle_root": header[36:68][::-1].hex(),
        "previousblockhash": block.prev_hash.hex() if block.prev_hash else None,
        "mediantime": times[5],
        "nonce": int.from_bytes(header[76:80], "little"),
        "bits": 0x1D00FFFF,
        "difficulty": 1.0,
    }
    path = f"/block/{block.hash.hex()}"
    assert ask(f"{path}/header") == (200, header.hex())
    assert get(f"{path}/txids") == [tx.txid.hex() for tx in block.txs]
    assert ask(f"{path}/txid/1") == (200, block.txs[1].txid.hex())
    assert get(f"{path}/status") == {"in_best_chain": True, "height": 429, "next_best": blocks()[429].hash.hex()}
    assert get(f"/block/{'00' * 32}/status") == {"in_best_chain": False}
    assert ask("/block-height/429") == (200, block.hash.hex())


def test_esplora_proofs(wallet: Wallet) -> None:
    block = max(blocks(), key=lambda block: len(block.txs))
    for tx in (block.txs[0], block.txs[-1], block.txs[len(block.txs) // 2]):
        proof = get(f"/tx/{tx.txid.hex()}/merkle-proof")
        electrum_proof = wallet.call("blockchain.transaction.get_merkle", tx.txid.hex(), block.height)
        assert proof == electrum_proof
        raw = bytes.fromhex(ask(f"/tx/{tx.txid.hex()}/merkleblock-proof")[1])
        assert raw[:80] == block.header
        assert proved(raw[80:]) == ((block.header or b"")[36:68], [tx.txid[::-1]])
        status = get(f"/tx/{tx.txid.hex()}/status")
        place = {"block_height": block.height, "block_hash": block.hash.hex(), "block_time": block.time}
        assert status == {"confirmed": True} | place


def proved(tree: bytes) -> tuple[bytes, list[bytes]]:
    """Return the root of a partial merkle tree, and the leaves that it proves (BIP 37)."""
    total, count = int.from_bytes(tree[:4], "little"), tree[4]
    hashes = [tree[5 + 32 * n : 37 + 32 * n] for n in range(count)]
    flags = tree[6 + 32 * count :]
    assert tree[5 + 32 * count] == len(flags)
    bits = iter([byte >> n & 1 for byte in flags for n in range(8)])
    matches: list[bytes] = []

    def walk(level: int, at: int) -> bytes:
        flagged = next(bits)
        if not flagged or level == 0:
            found = hashes.pop(0)
            matches.extend([found] if flagged else [])
            return found
        left = walk(level - 1, 2 * at)
        width = (total + (1 << level - 1) - 1) >> level - 1
        right = walk(level - 1, 2 * at + 1) if 2 * at + 1 < width else left
        return sha256(sha256(left + right).digest()).digest()

    root = walk((total - 1).bit_length(), 0)
    assert not hashes
    return root, matches


@pytest.mark.parametrize(
    ("path", "status", "what"),
    [
        (f"/tx/{KEY}", 404, "Transaction not found"),
        (f"/tx/{KEY}/merkle-proof", 404, "Transaction not found or is unconfirmed"),
        (f"/tx/{KEY}/outspends", 404, "Transaction not found"),
        ("/tx/xyz", 400, "txid must consist of 64 hexadecimal digits, not 'xyz'"),
        (f"/block/{KEY}", 404, "Block not found"),
        (f"/block/{KEY}/txids", 404, "Block not found"),
        ("/block-height/547", 404, "Block not found"),
        (f"/scripthash/{KEY[2:]}", 400, "scripthash must consist of 64 hexadecimal digits"),
        ("/address/mine", 400, "Invalid Bitcoin address"),
        (
            f"/scripthash/{KEY}/txs/chain/{KEY}",
            400,
            f"transaction {KEY} is not in the chain: start from the first page",
        ),
        ("/fee-estimates", 503, "no node is configured (upstream.bitcoin)"),
        ("/nothing", 404, "Not Found"),
    ],
)
def test_esplora_errors(daemon: Daemon, path: str, status: int, what: str) -> None:
    found, text = ask(path)
    assert found == status and what in text, text


def test_esplora_refuses_malformed_bodies(daemon: Daemon) -> None:
    assert ask("/tx", b"hello") == (400, "the transaction must consist of hexadecimal digits, not 'hello'")
    assert ask("/tx", b"00") == (503, "no node is configured (upstream.bitcoin)")
    assert "expected a JSON list of script hashes" in ask("/scripthashes/txs", b"{}")[1]
    assert "at most 500 script hashes" in ask("/scripthashes/txs", json.dumps([KEY] * 501).encode())[1]
    assert ask("/scripthashes/txs", json.dumps([KEY]).encode()) == (200, json.dumps({KEY: []}, separators=(",", ":")))
    with socket.create_connection(("127.0.0.1", WEB)) as client:
        client.sendall(b"POST /tx HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
