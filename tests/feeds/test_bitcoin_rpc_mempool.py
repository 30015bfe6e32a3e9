"""What is in no block yet: told once, parents first; and a daemon that does not want it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from bitcoin_rpc_chain import FakeNode, Fault, Inside, Ledger, Story, txid_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from test_bitcoin_block import made_input, made_output, made_tx, twice
from test_bitcoin_rpc_follow import OPTIONS, tell, tell_story, tell_to

from feeds.bitcoin import mempool
from feeds.bitcoin.block import decode_transaction
from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.mempool import parents_first
from feeds.bitcoin.rpc import Follower
from feeds.errors import FeedError
from feeds.link import Link
from handlers.events import BlockPersisted, Error, Inbound, Tx, TxSubmitted

WISH = replace(OPTIONS, mempool=True)
WITNESS = b"\x02\x01a\x01b"


def offer(fake: FakeNode, raw: bytes) -> str:
    """Put a transaction without witness into the mempool."""
    txid = txid_of(raw)
    fake.pool[txid] = raw
    return txid


def paying(value: int, spends: bytes = bytes(range(32))) -> bytes:
    return made_tx([made_input(spends)], [made_output(value)])


def submitted(ledger: Ledger) -> list[str]:
    return [message.tx.txid.hex() for message in ledger.heard(TxSubmitted)]


def test_each_is_told_once() -> None:
    fake, ledger = FakeNode(3), Ledger()
    first, second = offer(fake, paying(1)), offer(fake, paying(2))
    later: list[str] = []

    def another() -> None:
        later.append(offer(fake, paying(3)))
        fake.mine()

    tell_story(ledger, fake, fake.mine, another, fake.mine, options=WISH)
    assert submitted(ledger) == [first, second, *later]
    txs = [message.tx for message in ledger.heard(TxSubmitted)]
    assert [tx.raw for tx in txs] == [paying(1), paying(2), paying(3)]
    assert [tx.size for tx in txs] == [len(paying(1))] * 3
    assert (txs[0].inputs, [(output.address, output.value) for output in txs[0].outputs]) == (
        [(bytes(range(32)), 0)],
        [(b"\x51", 1)],
    )


def test_not_before_the_chain_is_told_and_not_unless_asked_for() -> None:
    fake, ledger = FakeNode(3), Ledger()
    offer(fake, paying(1))
    tell_to(ledger, fake)
    tell_to(ledger, fake, mempool=True)
    assert submitted(ledger) == [] and "getrawmempool" not in {method for method, _ in fake.calls}


def test_what_left_and_came_back_is_told_again() -> None:
    fake, ledger = FakeNode(3), Ledger()
    txid = offer(fake, paying(1))

    def leave() -> None:
        fake.pool.clear()
        fake.mine()

    def come_back() -> None:
        offer(fake, paying(1))
        fake.mine()

    tell_story(ledger, fake, leave, fake.mine, come_back, fake.mine, options=WISH)
    assert submitted(ledger) == [txid, txid]


def test_a_child_that_is_listed_first() -> None:
    fake, ledger = FakeNode(3), Ledger()
    parent = paying(1)
    child = paying(2, twice(parent)[::-1])
    order = [offer(fake, paying(3, twice(child)[::-1])), offer(fake, child), offer(fake, parent)]
    tell_story(ledger, fake, options=WISH)
    assert submitted(ledger) == order[::-1]


def test_with_witness() -> None:
    raw = made_tx([made_input()], [made_output(5, b"\x6a")], WITNESS)
    tx = decode_transaction(raw)
    assert tx.txid == twice(made_tx([made_input()], [made_output(5, b"\x6a")]))[::-1]
    assert (tx.raw, tx.size, [output.spendable for output in tx.outputs]) == (raw, len(raw), [False])
    numbers = (int.from_bytes(raw[:4], "little"), int.from_bytes(raw[-4:], "little"))
    assert (tx.version, tx.lock_time) == numbers
    other = decode_transaction(b"\x02\0\0\x80" + raw[4:-4] + b"\x01\x02\x03\xff")
    assert (other.version, other.lock_time) == (0x80000002, 0xFF030201)
    assert decode_transaction(raw, mark_unspendable=False).outputs[0].spendable


@pytest.mark.parametrize("raw", [b"", paying(1)[:-1], paying(1) + b"\0", made_tx([made_input()], [made_output()])[:20]])
def test_what_is_no_transaction(raw: bytes) -> None:
    with pytest.raises(BlockError):
        decode_transaction(raw)


def test_many_do_not_keep_a_block_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempool, "_AT_ONCE", 10)
    fake, ledger = FakeNode(3), Ledger()
    offered = [offer(fake, paying(value)) for value in range(35)]
    story = Story((25, fake.mine))
    fake.waits = lambda: (_ for _ in ()).throw(Story.Over)
    with pytest.raises(Story.Over):
        tell(ledger, Inside(fake, story.next), WISH)
    assert submitted(ledger) == offered and ledger.chain == fake.chain
    told = [(method, asked) for method, asked in fake.calls if method in ("getrawtransaction", "getblock")]
    assert "getblock" in [method for method, _ in told[15:30]]


def test_what_leaves_between_list_and_look_is_skipped() -> None:
    fake, ledger = FakeNode(3), Ledger()
    there = offer(fake, paying(1))
    fake.lies["getrawmempool"] = lambda _: ["ab" * 32, there]
    tell_story(ledger, fake, options=WISH)
    assert submitted(ledger) == [there]


@pytest.mark.parametrize("answer", [None, {}, "ab", [1], ["ab"], ["\n" * 64], [None]])
def test_what_is_no_list(answer: Any) -> None:
    fake = FakeNode(3)
    fake.lies["getrawmempool"] = lambda _: answer
    with pytest.raises(FeedError, match="answers to getrawmempool is no list of transactions"):
        tell(Ledger(), Inside(fake), WISH)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (None, "gives as transaction abab[ab]* is none"),
        ("xx", "gives as transaction abab[ab]* is none"),
        ("00", "gives as transaction abab[ab]* is none"),
        (paying(1).hex(), "gives transaction [0-9a-f]{64} for abab"),
    ],
)
def test_what_is_not_that_transaction(answer: Any, match: str) -> None:
    fake = FakeNode(3)
    fake.lies["getrawmempool"] = lambda _: ["ab" * 32]
    fake.lies["getrawtransaction"] = lambda _: answer
    with pytest.raises(FeedError, match=match):
        tell(Ledger(), Inside(fake), WISH)


def test_a_node_that_gives_no_transactions_says_so() -> None:
    def forbidden(_: list[Any]) -> Any:
        raise Fault(-32601, "Method not found")

    fake = FakeNode(3)
    offer(fake, paying(1))
    fake.lies["getrawtransaction"] = forbidden
    with pytest.raises(FeedError, match="refuses getrawtransaction: Method not found"):
        tell(Ledger(), Inside(fake), WISH)


@given(st.lists(st.sets(st.integers(0, 30)), max_size=20), st.randoms(use_true_random=False))
def test_any_family_comes_in_order(parents: list[set[int]], random: Any) -> None:
    names = [number.to_bytes(32, "big") for number in range(40)]
    txs = [
        Tx(names[n], [(names[parent], 0) for parent in sorted(own) if parent < n or parent >= len(parents)])
        for n, own in enumerate(parents)
    ]
    random.shuffle(txs)
    ordered = parents_first(txs)
    assert sorted(tx.txid for tx in ordered) == sorted(tx.txid for tx in txs)
    here = {tx.txid for tx in txs}
    seen: set[bytes] = set()
    for tx in ordered:
        assert all(source in seen for source, _ in tx.inputs if source in here)
        seen.add(tx.txid)


# --- a daemon that says no -----------------------------------------------------------------------------------------


@contextmanager
def daemon(path: Path, *answers: dict[str, Any]) -> Iterator[list[str]]:
    """Answer messages one after the other, on one connection; give the types of what came."""
    heard: list[str] = []
    welcome = {"type": "Welcome", "protocol": 1, "version": "0", "chain": {"family": "bitcoin", "network": "regtest"}}
    welcome |= {"tip": None, "points": [], "rollback_floor": None, "persisted_height": None}

    def serve() -> None:
        connection, _ = door.accept()
        with connection, connection.makefile("rb") as file:
            left = list(answers)
            while len(head := file.read(4)) == 4:
                message = msgspec.msgpack.decode(file.read(struct.unpack(">I", head)[0]))
                heard.append(message["type"])
                answer = welcome if message["type"] == "Hello" else left.pop(0) | {"seq": message["seq"]}
                body = msgspec.msgpack.encode(answer)
                connection.sendall(struct.pack(">I", len(body)) + body)

    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join(5)


ACK = {"type": "Ack", "status": "accepted", "tip": None}
UNAVAILABLE = {"type": "Error", "code": "unavailable", "message": "no store", "retryable": False, "detail": {}}
SUBMITTED = TxSubmitted(tx=Tx(bytes(32)))


async def feed(link: Link, *messages: Inbound) -> None:
    async def told() -> Any:
        for message in messages:
            yield message

    with anyio.fail_after(5):
        await link.feed(told())


def test_a_refused_transaction_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    refused: list[tuple[bytes, str]] = []
    statuses: list[str] = []
    link = Link(
        tmp_path / "s",
        acknowledged=lambda _, status: statuses.append(status),
        refused=lambda txid, error: refused.append((txid, error.code)),
        patience_s=0,
    )
    with daemon(tmp_path / "s", ACK, UNAVAILABLE, ACK, UNAVAILABLE | {"code": "CONFLICTING"}) as heard:
        persisted = BlockPersisted(height=1)
        anyio.run(feed, link, persisted, SUBMITTED, persisted, SUBMITTED)
    assert statuses == ["accepted", "unavailable", "accepted", "CONFLICTING"]
    assert refused == [(bytes(32), "unavailable"), (bytes(32), "CONFLICTING")]
    assert heard == ["Hello", "BlockPersisted", "TxSubmitted", "BlockPersisted", "TxSubmitted"]


@pytest.mark.parametrize("retryable", [False, True])
@pytest.mark.parametrize(
    "code", ["unavailable", "store_full", "TX_EXISTS", "UTXO_ERROR", "STORAGE_ERROR", "PROCESSING", "CREATING"]
)
def test_no_answer_to_a_transaction_keeps_a_block_waiting(tmp_path: Path, code: str, retryable: bool) -> None:
    """One that may pass is not waited out: the connection stays, and what comes behind it arrives."""
    refused: list[str] = []
    said: list[str] = []
    link = Link(tmp_path / "s", told=said.append, refused=lambda _, error: refused.append(error.code), patience_s=0)
    with daemon(tmp_path / "s", UNAVAILABLE | {"code": code, "retryable": retryable}, ACK) as heard:
        anyio.run(feed, link, SUBMITTED, BlockPersisted(height=1))
    assert (refused, said, heard) == ([code], [], ["Hello", "TxSubmitted", "BlockPersisted"])


@pytest.mark.parametrize(("message", "hears"), [(SUBMITTED, False), (BlockPersisted(height=1), True)])
def test_any_other_refusal_ends_the_feed(tmp_path: Path, message: Inbound, hears: bool) -> None:
    """So does that of a transaction where nobody hears of it."""
    refused: list[Error] = []
    hear = (lambda _, error: refused.append(error)) if hears else None
    link = Link(tmp_path / "s", refused=hear, patience_s=0)
    with (
        daemon(tmp_path / "s", UNAVAILABLE),
        pytest.raises(FeedError, match="refused a message: unavailable: no store"),
    ):
        anyio.run(feed, link, message)
    assert refused == []


def test_a_daemon_without_a_transaction_store_is_warned_of_once() -> None:
    fake, told = FakeNode(3), list[str]()
    offer(fake, paying(1))
    follower = Follower(Inside(fake), replace(WISH, to=4))
    follower.hear(told.append)
    ledger = Ledger()

    async def feed_it() -> None:
        async for message in follower.messages(ledger.welcome()):
            ledger.hear(message)
            if isinstance(message, TxSubmitted):
                for _ in range(2):
                    follower.refused(message.tx.txid, Error(seq=1, code="unavailable", message="no store"))
                offer(fake, paying(2))
                fake.mine()

    anyio.run(feed_it)
    assert told == ["the daemon takes no transactions (no store): --mempool is switched off"]
    assert len(submitted(ledger)) == 1


def test_a_daemon_that_refuses_one_is_given_the_next() -> None:
    fake, told = FakeNode(3), list[str]()
    follower = Follower(Inside(fake), WISH)
    follower.hear(told.append)
    follower.refused(bytes(32), Error(seq=1, code="UTXO_ERROR", message="spent"))
    assert told == []
    ledger = Ledger()
    offer(fake, paying(2))
    fake.waits = lambda: (_ for _ in ()).throw(Story.Over)
    with pytest.raises(Story.Over):
        anyio.run(ledger.hear_all, follower.messages(ledger.welcome()))
    assert len(submitted(ledger)) == 1


@pytest.mark.parametrize(("retryable", "times"), [(True, 2), (False, 1)])
def test_what_the_daemon_may_take_later_is_told_again(retryable: bool, times: int) -> None:
    fake = FakeNode(3)
    txid = offer(fake, paying(1))
    story, ledger = Story((20, fake.mine)), Ledger()
    follower = Follower(Inside(fake, story.next), replace(WISH, to=4))

    async def feed_it() -> None:
        async for message in follower.messages(ledger.welcome()):
            ledger.hear(message)
            if isinstance(message, TxSubmitted) and len(submitted(ledger)) == 1:
                error = Error(seq=1, code="STORAGE_ERROR", message="no room", retryable=retryable)
                follower.refused(message.tx.txid, error)

    anyio.run(feed_it)
    assert submitted(ledger) == [txid] * times
