"""What is in no block yet: told once, parents first; and a daemon that does not want it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from bitcoin_rpc_chain import FakeNode, Fault, Inside, Ledger, Scenario, txid_of
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
from handlers.events import BlockPersisted, Error, Inbound, Tx, TxSubmitted, TxWithdrawn

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
    assert withdrawals(ledger) == [(txid, "evicted")]


# --- what leaves -----------------------------------------------------------------------------------------------------


def withdrawals(ledger: Ledger) -> list[tuple[str, str]]:
    return [(message.txids[0].hex(), message.reason) for message in ledger.heard(TxWithdrawn)]


def order(ledger: Ledger) -> list[tuple[str, str]]:
    """Return what was said of transactions, in order."""
    said: list[tuple[str, str]] = []
    for message in ledger.others:
        if isinstance(message, TxSubmitted):
            said.append(("submitted", message.tx.txid.hex()))
        elif isinstance(message, TxWithdrawn):
            said += [(message.reason, txid.hex()) for txid in message.txids]
    return said


def spending(parent: bytes, value: int = 1, index: int = 0) -> bytes:
    return paying_from(twice(parent)[::-1], value, index)


def paying_from(txid: bytes, value: int, index: int) -> bytes:
    return made_tx([made_input(txid, index)], [made_output(value), made_output(value)])


class Pool:
    """A mempool to which things happen, each with a block, so that the feed looks again."""

    def __init__(self) -> None:
        self.fake, self.ledger = FakeNode(3), Ledger()
        self.events: list[Any] = []

    def then(self, *come: bytes, go: tuple[bytes, ...] = (), mined: tuple[bytes, ...] = ()) -> Pool:
        def happen() -> None:
            for raw in go:
                del self.fake.pool[txid_of(raw)]
            for raw in come:
                offer(self.fake, raw)
            self.fake.mine(1, *mined)

        self.events.append(happen)
        return self

    def told(self) -> list[tuple[str, str]]:
        """Let it happen; return what was said."""
        tell_story(self.ledger, self.fake, *self.events, self.fake.mine, options=WISH)
        return order(self.ledger)


def test_what_leaves_is_withdrawn_once() -> None:
    a, b = paying(1), paying(2, digest(2))
    told = Pool().then(a, b).then(go=(a,)).then().told()
    assert told == [("submitted", txid_of(a)), ("submitted", txid_of(b)), ("evicted", txid_of(a))]


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_replacement_comes_behind_the_withdrawal() -> None:
    """Children leave first, and say why by themselves."""
    old, new = paying(1), paying(2)
    child = spending(old)
    told = Pool().then(child, old).then(new, go=(old, child)).told()
    assert told == [
        ("submitted", txid_of(old)),
        ("submitted", txid_of(child)),
        ("evicted", txid_of(child)),
        ("replaced", txid_of(old)),
        ("submitted", txid_of(new)),
    ]


def test_what_a_block_has_or_decides_is_not_withdrawn() -> None:
    """Neither what is mined, nor what loses to the block, with its child: the daemon knows by the block."""
    a, loser, stays = paying(1), paying(2, digest(2)), paying(3, digest(3))
    child = spending(loser)
    winner = paying(4, digest(2))
    pool = Pool().then(a, loser, child, stays).then(go=(loser, child), mined=(a, winner))
    told = pool.then().then(go=(stays,)).told()
    assert told[4:] == [("evicted", txid_of(stays))]


def test_a_block_between_the_list_and_its_look() -> None:
    """The list lacks what a block has that is not told yet."""
    a, fake, ledger = paying(1), FakeNode(3), Ledger()
    offer(fake, a)
    asked: list[int] = []

    def listed(_: list[Any]) -> Any:
        asked.append(1)
        if len(asked) == 2:
            fake.mine(1, a)
        return list(fake.pool)

    fake.lies["getrawmempool"] = listed
    tell_story(ledger, fake, fake.mine, fake.mine, options=WISH)
    assert order(ledger) == [("submitted", txid_of(a))] and ledger.chain == fake.chain


def test_what_comes_back_is_told_again() -> None:
    a = paying(1)
    told = Pool().then(a).then(go=(a,)).then(a).told()
    assert [what for what, _ in told] == ["submitted", "evicted", "submitted"]


def test_a_mempool_that_is_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """While more is to be told than at once, only what is certainly replaced is withdrawn."""
    monkeypatch.setattr(mempool, "_AT_ONCE", 5)
    old, other, back, new = paying(1), paying(2, digest(2)), paying(3, digest(3)), paying(4)
    many = [paying(value, digest(value)) for value in range(10, 30)]
    pool = Pool().then(old, other, back)
    pool.then(new, *many[:10], go=(old, other))
    told = pool.told()
    at = {said: place for place, said in enumerate(told)}
    replaced, evicted = at["replaced", txid_of(old)], at["evicted", txid_of(other)]
    assert replaced < at["submitted", txid_of(new)] < at["submitted", txid_of(many[8])] < evicted


def test_a_refused_replacement_is_offered_again() -> None:
    """With what builds on it; when what it replaces is withdrawn, and not for ever."""
    old, new, beside = paying(1), paying(2), paying(3, digest(3))
    child = spending(new)
    refused = {txid_of(raw) for raw in (new, child, beside)}
    fake, ledger = FakeNode(3), Ledger()
    offer(fake, old)
    # For once the node lists both, as it does when the list is made while it replaces one by the other.
    events: list[Callable[[], object]] = [
        lambda: [offer(fake, raw) for raw in (new, child, beside)],
        lambda: fake.pool.pop(txid_of(old)),
        *[lambda: None] * 2,
    ]
    follower = Follower(Inside(fake), WISH)

    def rest() -> None:
        if not events:
            raise Scenario.Over
        events.pop(0)()
        fake.mine()

    fake.waits = rest

    async def feed_it() -> None:
        async for message in follower.messages(ledger.welcome()):
            ledger.hear(message)
            if isinstance(message, TxSubmitted) and message.tx.txid.hex() in refused:
                follower.refused(message.tx.txid, Error(seq=1, code="UTXO_ERROR", message="spent"))

    with pytest.raises(Scenario.Over):
        anyio.run(feed_it)
    told = order(ledger)
    assert sorted(told[1:4]) == sorted(("submitted", txid) for txid in refused)
    assert told[4:] == [("replaced", txid_of(old)), ("submitted", txid_of(new)), ("submitted", txid_of(child))]


@pytest.mark.parametrize(("code", "retryable", "times"), [("CREATING", True, 3), ("FROZEN", False, 1)])
def test_a_withdrawal_that_is_refused(code: str, retryable: bool, times: int) -> None:
    """It is tried again where that may help; what it keeps from being accepted is told behind it."""
    old, new = paying(1), paying(2)
    fake, ledger = FakeNode(3), Ledger()
    offer(fake, old)

    def replace_it() -> None:
        fake.pool.clear()
        offer(fake, new)

    events: list[Callable[[], object]] = [replace_it, *[lambda: None] * 4]
    follower = Follower(Inside(fake), WISH)

    def rest() -> None:
        if not events:
            raise Scenario.Over
        events.pop(0)()
        fake.mine()

    fake.waits = rest

    async def feed_it() -> None:
        async for message in follower.messages(ledger.welcome()):
            ledger.hear(message)
            if isinstance(message, TxWithdrawn) and len(withdrawals(ledger)) < times:
                follower.kept(message.txids[0], Error(seq=1, code=code, message="no", retryable=retryable))
            if isinstance(message, TxSubmitted) and 0 < len(withdrawals(ledger)) < times:
                follower.refused(message.tx.txid, Error(seq=1, code="UTXO_ERROR", message="spent"))

    with pytest.raises(Scenario.Over):
        anyio.run(feed_it)
    assert order(ledger)[1:] == [("replaced", txid_of(old)), ("submitted", txid_of(new))] * times


def test_a_refused_one_that_leaves_is_not_withdrawn() -> None:
    a, fake, ledger = paying(1), FakeNode(3), Ledger()
    offer(fake, a)
    events: list[Callable[[], object]] = [fake.pool.clear, lambda: None]
    follower = Follower(Inside(fake), WISH)

    def rest() -> None:
        if not events:
            raise Scenario.Over
        events.pop(0)()
        fake.mine()

    fake.waits = rest

    async def feed_it() -> None:
        async for message in follower.messages(ledger.welcome()):
            ledger.hear(message)
            if isinstance(message, TxSubmitted):
                follower.refused(message.tx.txid, Error(seq=1, code="UTXO_ERROR", message="spent"))

    with pytest.raises(Scenario.Over):
        anyio.run(feed_it)
    assert order(ledger) == [("submitted", txid_of(a))]


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
    story = Scenario((25, fake.mine))
    fake.waits = lambda: (_ for _ in ()).throw(Scenario.Over)
    with pytest.raises(Scenario.Over):
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


@pytest.mark.parametrize("code", ["TX_NOT_FOUND", "CREATING", "unknown_type"])
def test_a_refused_withdrawal_is_told_and_the_rest_goes_on(tmp_path: Path, code: str) -> None:
    kept: list[tuple[bytes, str]] = []
    link = Link(tmp_path / "s", kept=lambda txid, error: kept.append((txid, error.code)), patience_s=0)
    withdrawn = TxWithdrawn(txids=[bytes(32)], reason="evicted")
    with daemon(tmp_path / "s", UNAVAILABLE | {"code": code, "retryable": code == "CREATING"}, ACK) as heard:
        anyio.run(feed, link, withdrawn, BlockPersisted(height=1))
    assert (kept, heard) == ([(bytes(32), code)], ["Hello", "TxWithdrawn", "BlockPersisted"])


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
    fake.waits = lambda: (_ for _ in ()).throw(Scenario.Over)
    with pytest.raises(Scenario.Over):
        anyio.run(ledger.hear_all, follower.messages(ledger.welcome()))
    assert len(submitted(ledger)) == 1


@pytest.mark.parametrize(("retryable", "times"), [(True, 2), (False, 1)])
def test_what_the_daemon_may_take_later_is_told_again(retryable: bool, times: int) -> None:
    fake = FakeNode(3)
    txid = offer(fake, paying(1))
    story, ledger = Scenario((20, fake.mine)), Ledger()
    follower = Follower(Inside(fake, story.next), replace(WISH, to=4))

    async def feed_it() -> None:
        async for message in follower.messages(ledger.welcome()):
            ledger.hear(message)
            if isinstance(message, TxSubmitted) and len(submitted(ledger)) == 1:
                error = Error(seq=1, code="STORAGE_ERROR", message="no room", retryable=retryable)
                follower.refused(message.tx.txid, error)

    anyio.run(feed_it)
    assert submitted(ledger) == [txid] * times
