"""Transactions of a node's mempool: each submitted once, parents first, and withdrawn when it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from bitcoin_feeds import BITCOIN, fake_daemon, feed_link
from bitcoin_rpc_chain import FakeNode, Fault, Inside, Ledger, Scenario, txid_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from test_bitcoin_block import made_input, made_output, made_tx, twice
from test_bitcoin_rpc_follow import OPTIONS, follow, follow_to_tip

from feeds.bitcoin import mempool
from feeds.bitcoin.block import decode_transaction
from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.mempool import parents_first
from feeds.bitcoin.rpc import Follower
from feeds.errors import FeedError
from feeds.link import Link
from handlers.events import BlockPersisted, Error, Inbound, Tx, TxSubmitted, TxWithdrawn

WITH_MEMPOOL = replace(OPTIONS, mempool=True)
WITNESS = b"\x02\x01a\x01b"
SPENT = Error(seq=1, code="UTXO_ERROR", message="spent")


def offer(fake: FakeNode, raw: bytes) -> str:
    fake.pool[txid_of(raw)] = raw
    return txid_of(raw)


def paying(value: int, spends: bytes = bytes(range(32))) -> bytes:
    return made_tx([made_input(spends)], [made_output(value)])


def spending(parent: bytes) -> bytes:
    return made_tx([made_input(twice(parent)[::-1])], [made_output(), made_output()])


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def submitted(ledger: Ledger) -> list[str]:
    return [message.tx.txid.hex() for message in ledger.received(TxSubmitted)]


class Pool:
    """A mempool that changes with each block."""

    def __init__(self, *first: bytes) -> None:
        self.fake, self.ledger = FakeNode(3), Ledger()
        self.events: list[Callable[[], object]] = []
        for raw in first:
            offer(self.fake, raw)

    def then(self, *come: bytes, go: tuple[bytes, ...] = (), mined: tuple[bytes, ...] = ()) -> Pool:
        def happen() -> None:
            for raw in go:
                del self.fake.pool[txid_of(raw)]
            for raw in come:
                offer(self.fake, raw)
            self.fake.mine(1, *mined)

        self.events.append(happen)
        return self

    def sent(self, react: Callable[[Follower, Inbound], object] = lambda *_: None) -> list[tuple[str, str]]:
        """Run the events; return the messages about transactions as (kind, id)."""
        follower = Follower(Inside(self.fake), WITH_MEMPOOL)
        events = [*self.events, self.fake.mine]

        def rest() -> None:
            if not events:
                raise Scenario.Over
            events.pop(0)()

        async def main() -> None:
            async for message in follower.messages(self.ledger.welcome()):
                self.ledger.hear(message)
                react(follower, message)

        self.fake.waits = rest
        with pytest.raises(Scenario.Over):
            anyio.run(main)
        found: list[tuple[str, str]] = []
        for message in self.ledger.others:
            if isinstance(message, TxSubmitted):
                found.append(("submitted", message.tx.txid.hex()))
            elif isinstance(message, TxWithdrawn):
                found += [(message.reason, txid.hex()) for txid in message.txids]
        return found


def named(*messages: tuple[str, bytes]) -> list[tuple[str, str]]:
    return [(kind, txid_of(raw)) for kind, raw in messages]


def test_each_transaction_is_submitted_once() -> None:
    a, b, c = (paying(value) for value in (1, 2, 3))
    pool = Pool(a, b).then().then(c).then()
    assert pool.sent() == named(("submitted", a), ("submitted", b), ("submitted", c))
    txs = [message.tx for message in pool.ledger.received(TxSubmitted)]
    assert [(tx.raw, tx.size) for tx in txs] == [(raw, len(raw)) for raw in (a, b, c)]
    assert txs[0].inputs == [(bytes(range(32)), 0)]
    assert [(output.address, output.value) for output in txs[0].outputs] == [(b"\x51", 1)]


def test_the_mempool_is_read_only_at_the_tip_and_only_if_configured() -> None:
    fake, ledger = FakeNode(3), Ledger()
    offer(fake, paying(1))
    follow_to_tip(ledger, fake)
    follow_to_tip(ledger, fake, mempool=True)
    assert submitted(ledger) == [] and "getrawmempool" not in {method for method, _ in fake.calls}


A, B, C = paying(1), paying(2, digest(2)), paying(3, digest(3))
NEW, LOSER, WINNER = paying(4), paying(2, digest(2)), paying(5, digest(2))
CHANGES = {
    "a transaction that leaves is withdrawn once": (
        lambda: Pool().then(A, B).then(go=(A,)).then(),
        [("submitted", A), ("submitted", B), ("evicted", A)],
    ),
    "one that returns is submitted again": (
        lambda: Pool().then(A).then(go=(A,)).then(A),
        [("submitted", A), ("evicted", A), ("submitted", A)],
    ),
    "a replacement follows the withdrawals, children first": (
        lambda: Pool().then(spending(A), A).then(NEW, go=(A, spending(A))),
        [("submitted", A), ("submitted", spending(A)), ("evicted", spending(A)), ("replaced", A), ("submitted", NEW)],
    ),
    "nothing that a block has or decides is withdrawn": (
        lambda: (
            Pool().then(A, LOSER, spending(LOSER), C).then(go=(LOSER, spending(LOSER)), mined=(A, WINNER)).then(go=(C,))
        ),
        [("submitted", A), ("submitted", LOSER), ("submitted", C), ("submitted", spending(LOSER)), ("evicted", C)],
    ),
    "parents are submitted first": (
        lambda: Pool(spending(spending(A)), spending(A), A),
        [("submitted", A), ("submitted", spending(A)), ("submitted", spending(spending(A)))],
    ),
}


@pytest.mark.parametrize(("pool", "expected"), CHANGES.values(), ids=CHANGES)
def test_messages_about_transactions(pool: Callable[[], Pool], expected: list[tuple[str, bytes]]) -> None:
    assert pool().sent() == named(*expected)


def test_a_block_that_arrives_while_the_mempool_is_listed() -> None:
    pool, lists = Pool(A).then(), iter(range(9))

    def listed(_: list[Any]) -> Any:
        if next(lists) == 1:
            pool.fake.mine(1, A)
        return list(pool.fake.pool)

    pool.fake.lies["getrawmempool"] = listed
    assert pool.sent() == named(("submitted", A)) and pool.ledger.chain == pool.fake.chain


def test_only_replaced_ones_are_withdrawn_while_the_mempool_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempool, "_AT_ONCE", 5)
    many = [paying(value, digest(value)) for value in range(10, 20)]
    found = Pool().then(A, B, C).then(NEW, *many, go=(A, B)).sent()
    at = {each: place for place, each in enumerate(found)}
    replaced, evicted = at["replaced", txid_of(A)], at["evicted", txid_of(B)]
    assert replaced < at["submitted", txid_of(NEW)] < at["submitted", txid_of(many[8])] < evicted


def test_a_refused_replacement_is_submitted_again_after_the_withdrawal() -> None:
    child, other = spending(NEW), paying(3, digest(3))
    refused = {txid_of(raw) for raw in (NEW, child, other)}

    def refuse(follower: Follower, message: Inbound) -> None:
        if isinstance(message, TxSubmitted) and message.tx.txid.hex() in refused:
            follower.refused(message.tx.txid, SPENT)

    # For once the node lists both, as it does when the list is made while it replaces one by the other.
    found = Pool(A).then(NEW, child, other).then(go=(A,)).then().then().sent(refuse)
    assert sorted(found[1:4]) == sorted(("submitted", txid) for txid in refused)
    assert found[4:] == named(("replaced", A), ("submitted", NEW), ("submitted", child))


@pytest.mark.parametrize(("code", "retryable", "times"), [("CREATING", True, 3), ("FROZEN", False, 1)])
def test_a_refused_withdrawal_is_repeated_where_that_may_help(code: str, retryable: bool, times: int) -> None:
    pool = Pool(A).then(NEW, go=(A,)).then().then().then().then()

    def refuse(follower: Follower, message: Inbound) -> None:
        withdrawals = len(pool.ledger.received(TxWithdrawn))
        if isinstance(message, TxWithdrawn) and withdrawals < times:
            follower.kept(message.txids[0], Error(seq=1, code=code, message="no", retryable=retryable))
        if isinstance(message, TxSubmitted) and 0 < withdrawals < times:
            follower.refused(message.tx.txid, SPENT)

    assert pool.sent(refuse)[1:] == named(("replaced", A), ("submitted", NEW)) * times


def test_a_refused_transaction_that_leaves_is_not_withdrawn() -> None:
    def refuse(follower: Follower, message: Inbound) -> None:
        if isinstance(message, TxSubmitted):
            follower.refused(message.tx.txid, SPENT)

    assert Pool(A).then(go=(A,)).then().sent(refuse) == named(("submitted", A))


def test_a_transaction_with_witness_is_decoded() -> None:
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
def test_malformed_transactions_are_refused(raw: bytes) -> None:
    with pytest.raises(BlockError):
        decode_transaction(raw)


def test_many_transactions_do_not_delay_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempool, "_AT_ONCE", 10)
    fake, ledger = FakeNode(3), Ledger()
    offered = [offer(fake, paying(value)) for value in range(35)]
    events = Scenario((25, fake.mine))
    fake.waits = lambda: (_ for _ in ()).throw(Scenario.Over)
    with pytest.raises(Scenario.Over):
        follow(ledger, Inside(fake, events.next), WITH_MEMPOOL)
    assert submitted(ledger) == offered and ledger.chain == fake.chain
    calls = [(method, requests) for method, requests in fake.calls if method in ("getrawtransaction", "getblock")]
    assert "getblock" in [method for method, _ in calls[15:30]]


def test_a_transaction_that_leaves_before_it_is_read_is_skipped() -> None:
    pool = Pool(A)
    pool.fake.lies["getrawmempool"] = lambda _: ["ab" * 32, txid_of(A)]
    assert pool.sent() == named(("submitted", A))


ANSWERS: list[tuple[str, Any, str]] = [
    *(("getrawmempool", answer, "is not a list of transactions") for answer in (None, "ab", [1], ["\n" * 64])),
    *(("getrawtransaction", answer, "returned an invalid transaction abab[ab]*:") for answer in (None, "xx", "00")),
    ("getrawtransaction", paying(1).hex(), "returned transaction [0-9a-f]{64} instead of abab"),
    ("getrawtransaction", Fault(-32601, "Method not found"), "refuses getrawtransaction: Method not found"),
]


@pytest.mark.parametrize(("method", "answer", "match"), ANSWERS)
def test_malformed_answers_end_the_feed(method: str, answer: Any, match: str) -> None:
    def reply(_: list[Any]) -> Any:
        if isinstance(answer, Fault):
            raise answer
        return answer

    fake = FakeNode(3)
    fake.lies = {"getrawmempool": lambda _: ["ab" * 32], method: reply}
    with pytest.raises(FeedError, match=match):
        follow(Ledger(), Inside(fake), WITH_MEMPOOL)


@given(st.lists(st.sets(st.integers(0, 30)), max_size=20), st.randoms(use_true_random=False))
def test_parents_come_before_children(parents: list[set[int]], random: Any) -> None:
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


ACK = {"type": "Ack", "status": "accepted", "tip": None}
UNAVAILABLE = {"type": "Error", "code": "unavailable", "message": "no store", "retryable": False, "detail": {}}
SUBMITTED = TxSubmitted(tx=Tx(bytes(32)))


def test_statuses_of_refused_transactions_are_reported(tmp_path: Path) -> None:
    statuses: list[str] = []
    link = Link(
        tmp_path / "s", acknowledged=lambda _, status: statuses.append(status), refused=lambda *_: None, patience_s=0
    )
    with fake_daemon(tmp_path / "s", (BITCOIN, [ACK, UNAVAILABLE, ACK])):
        anyio.run(feed_link, link, BlockPersisted(height=1), SUBMITTED, BlockPersisted(height=1))
    assert statuses == ["accepted", "unavailable", "accepted"]


@pytest.mark.parametrize(
    ("code", "retryable"), [("unavailable", False), ("store_full", True), ("UTXO_ERROR", False), ("CREATING", True)]
)
@pytest.mark.parametrize("message", [SUBMITTED, TxWithdrawn(txids=[bytes(32)], reason="evicted")])
def test_a_refused_transaction_delays_nothing(tmp_path: Path, message: Inbound, code: str, retryable: bool) -> None:
    reported: list[tuple[bytes, str]] = []
    notices: list[str] = []

    def report(txid: bytes, error: Error) -> None:
        reported.append((txid, error.code))

    link = Link(tmp_path / "s", notice=notices.append, refused=report, kept=report, patience_s=0)
    with fake_daemon(
        tmp_path / "s", (BITCOIN, [UNAVAILABLE | {"code": code, "retryable": retryable}, ACK])
    ) as received:
        anyio.run(feed_link, link, message, BlockPersisted(height=1))
    kind = type(message).__name__
    assert (reported, notices, received) == ([(bytes(32), code)], [], ["Hello", kind, "BlockPersisted"])


@pytest.mark.parametrize(("message", "hears"), [(SUBMITTED, False), (BlockPersisted(height=1), True)])
def test_other_refusals_end_the_feed(tmp_path: Path, message: Inbound, hears: bool) -> None:
    refused: list[Error] = []
    link = Link(tmp_path / "s", refused=(lambda _, error: refused.append(error)) if hears else None, patience_s=0)
    with (
        fake_daemon(tmp_path / "s", (BITCOIN, [UNAVAILABLE])),
        pytest.raises(FeedError, match="refused a message: unavailable: no store"),
    ):
        anyio.run(feed_link, link, message)
    assert refused == []


def test_a_daemon_without_a_transaction_store_is_reported_once() -> None:
    pool, notices = Pool(A).then(B).then(C), list[str]()

    def refuse(follower: Follower, message: Inbound) -> None:
        follower.notify(notices.append)
        if isinstance(message, TxSubmitted):
            for _ in range(2):
                follower.refused(message.tx.txid, Error(seq=1, code="unavailable", message="no store"))

    assert pool.sent(refuse) == named(("submitted", A))
    assert notices == ["the daemon does not accept transactions (no store): --mempool is switched off"]


@pytest.mark.parametrize(("retryable", "times"), [(True, 2), (False, 1)])
def test_a_transaction_that_may_be_accepted_later_is_submitted_again(retryable: bool, times: int) -> None:
    pool = Pool(A).then().then()

    def refuse(follower: Follower, message: Inbound) -> None:
        if isinstance(message, TxSubmitted) and len(submitted(pool.ledger)) == 1:
            error = Error(seq=1, code="STORAGE_ERROR", message="no room", retryable=retryable)
            follower.refused(message.tx.txid, error)

    assert pool.sent(refuse) == named(("submitted", A)) * times
