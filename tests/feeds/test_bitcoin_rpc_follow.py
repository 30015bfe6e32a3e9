"""Following a node that mines, reorganises, disconnects and answers wrongly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest
from bitcoin_rpc_chain import FakeNode, Fault, Inside, Ledger, Scenario, go_away
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_bitcoin_block import hash_of, made_block, made_coinbase

from feeds.bitcoin import patience
from feeds.bitcoin.networks import MAINNET, REGTEST
from feeds.bitcoin.rpc import Follower, Options
from feeds.errors import FeedError
from feeds.run import NOWHERE
from handlers.events import BlockPersisted

OPTIONS = Options(network=REGTEST, poll_s=0.001)


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "_PAUSES_S", (0.0,))
        yield


def follow(ledger: Ledger, node: Inside, options: Options = OPTIONS, notices: list[str] | None = None) -> None:
    follower = Follower(node, options)
    follower.notify(notices.append if notices is not None else list[str]().append)

    async def report() -> None:
        with anyio.fail_after(20):
            async with aclosing(follower.messages(ledger.welcome())) as messages:
                await ledger.hear_all(messages)

    anyio.run(report)


def follow_to_tip(ledger: Ledger, fake: FakeNode, **options: Any) -> None:
    follow(ledger, Inside(fake), replace(OPTIONS, to=fake.height, **options))
    assert ledger.chain == fake.chain


def follow_events(
    ledger: Ledger, fake: FakeNode, *events: Callable[[], object], options: Options = OPTIONS, **more: Any
) -> None:
    """Let the next event happen each time the ledger is at the tip."""
    left = list(events)

    def rest() -> None:
        if not left:
            raise Scenario.Over
        left.pop(0)()

    fake.waits = rest
    with pytest.raises(Scenario.Over):
        follow(ledger, Inside(fake), options, **more)


def test_every_block_from_the_first_is_sent_once() -> None:
    fake, ledger = FakeNode(), Ledger()
    for length in (0, 1, 2, 99, 100, 101, 250):
        fake.mine(length - fake.height)
        follow_to_tip(ledger, fake)
        assert ledger.network_tips()[-1] == length
    fake.calls.clear()
    follow_to_tip(ledger, fake)
    assert "getblock" not in {method for method, _ in fake.calls}
    assert [block.height for block in ledger.blocks] == list(range(251))
    assert [output.spendable for tx in ledger.blocks[0].txs for output in tx.outputs] == [False]


def test_the_feed_ends_at_a_height() -> None:
    fake, ledger = FakeNode(30), Ledger()
    follow(ledger, Inside(fake), replace(OPTIONS, to=12))
    assert ledger.chain == fake.chain[:13]
    follow(ledger, Inside(fake), replace(OPTIONS, to=5))
    assert ledger.chain == fake.chain[:13]
    fake.waits = fake.mine
    follow(ledger, Inside(fake), replace(OPTIONS, to=35))
    assert ledger.chain == fake.chain and fake.height == 35


def test_the_network_tip_is_that_of_the_headers_or_the_option() -> None:
    fake, ledger = FakeNode(5), Ledger()
    fake.headers = 3
    follow_to_tip(ledger, fake)
    follow_to_tip(ledger, fake, known_tip=20)
    assert ledger.network_tips() == [8, 20]
    ledger, follower = Ledger(), Follower(Inside(fake), replace(OPTIONS, to=5))
    anyio.run(ledger.hear_all, follower.messages(NOWHERE))
    assert (ledger.chain, follower.height, follower.tip) == (fake.chain, 5, 8)


def test_unspendable_outputs_are_marked_or_kept() -> None:
    fake, marked, kept = FakeNode(2), Ledger(), Ledger()
    follow_to_tip(marked, fake)
    follow_to_tip(kept, fake, mark_unspendable=False)
    found = [[o.spendable for tx in block.txs for o in tx.outputs] for block in marked.blocks]
    assert (found[0], found[2]) == ([False], [True, True, False])
    assert all(output.spendable for block in kept.blocks for tx in block.txs for output in tx.outputs)


def test_blocks_of_a_depth_are_reported_as_persisted() -> None:
    fake, ledger = FakeNode(2500), Ledger()
    options = replace(OPTIONS, persisted_depth=6)
    follow_events(
        ledger, fake, fake.mine, lambda: fake.reorganise(3, 3), lambda: fake.reorganise(3, 5), options=options
    )
    persisted = ledger.received(BlockPersisted)
    assert [message.height for message in persisted] == [994, 1994, 2494, 2495, 2497]
    assert [message.hash.hex() for message in persisted] == [fake.chain[message.height] for message in persisted]
    persisted_before = replace(ledger.welcome(), persisted_height=2497)
    follower = Follower(Inside(fake), replace(options, to=fake.height + 0))
    anyio.run(ledger.hear_all, follower.messages(persisted_before))
    assert len(ledger.received(BlockPersisted)) == 5
    fake, ledger = FakeNode(5), Ledger()
    follow_to_tip(ledger, fake, persisted_depth=6)
    assert ledger.received(BlockPersisted) == []


@pytest.mark.parametrize("depth", [*range(1, 13), *range(30, 41, 2)])
def test_a_new_feed_rolls_back_to_the_newest_common_point(depth: int) -> None:
    fake, ledger = FakeNode(40), Ledger()
    follow_to_tip(ledger, fake)
    points = [point.height for point in ledger.welcome().points]
    fake.reorganise(depth, depth + 1)
    follow_to_tip(ledger, fake)
    assert ledger.rollbacks == [40 - max(point for point in points if point <= 40 - depth)]


def forget(fake: FakeNode) -> None:
    for each in fake.drop_last(20):
        del fake.blocks[each]


AT_THE_TIP: dict[str, tuple[int, list[Callable[[FakeNode], object]], list[int]]] = {
    "blocks": (5, [FakeNode.mine] * 5, []),
    **{f"{n} blocks": (150, [lambda fake, n=n: fake.reorganise(n, n + 2)], [n]) for n in (1, 7, 32, 150)},  # type: ignore[misc]
    "as many": (10, [lambda fake: fake.reorganise(2, 2)], [2]),
    "fewer": (10, [lambda fake: fake.drop_last(3), FakeNode.mine], [3]),
    "another chain": (20, [forget, *[FakeNode.mine] * 22], [20]),
    "again and again": (5, [lambda fake: fake.reorganise(3, 4)] * 150, [3] * 150),
}


@pytest.mark.parametrize(("length", "events", "rollbacks"), AT_THE_TIP.values(), ids=AT_THE_TIP)
def test_the_stale_blocks_are_rolled_back(
    length: int, events: list[Callable[[FakeNode], object]], rollbacks: list[int]
) -> None:
    fake, ledger = FakeNode(length), Ledger()
    follow_events(ledger, fake, *(partial(event, fake) for event in events), fake.mine)
    assert ledger.chain == fake.chain
    assert ledger.rollbacks == rollbacks
    if not rollbacks:
        assert ledger.network_tips() == list(range(length, fake.height + 1))


@pytest.mark.parametrize("why", ["it forgot", "it has headers"])
def test_a_node_that_is_behind_is_waited_for(why: str) -> None:
    fake, ledger, notices = FakeNode(20), Ledger(), list[str]()
    follow_to_tip(ledger, fake)
    removed = fake.drop_last(15)
    if why == "it forgot":
        blocks = [fake.blocks.pop(each) for each in removed]
    else:
        blocks = [fake.blocks[each] for each in removed]
        fake.headers = 15

    def come_nearer() -> None:
        assert len(ledger.chain) == 21
        fake.chain.append(removed[fake.height - 5])
        fake.blocks[fake.chain[-1]] = blocks[fake.height - 6]
        fake.headers = 20 - fake.height if fake.headers else 0

    follow_events(ledger, fake, *[come_nearer] * 15, fake.mine, notices=notices)
    assert ledger.chain == fake.chain and fake.height == 21
    assert ledger.rollbacks == []
    assert notices == [
        "the node at inside is at height 5, the daemon at 20: waiting until it has the blocks of the daemon"
    ]


def test_a_reorganisation_below_all_points_is_refused() -> None:
    fake, ledger = FakeNode(40), Ledger()
    follow_to_tip(ledger, fake)
    points = ledger.welcome(floor=30)
    fake.reorganise(11, 12)
    with pytest.raises(
        FeedError, match="none of its blocks from height 30 to 40 that can be compared is on the chain of"
    ):
        anyio.run(ledger.hear_all, Follower(Inside(fake), OPTIONS).messages(points))
    assert ledger.rollbacks == []


KINDS = st.sampled_from(["mine", "reorganise", "shorten", "forget", "away", "feed again"])
STEPS = st.lists(st.tuples(st.integers(0, 25), KINDS, st.integers(1, 30), st.integers(0, 12)), max_size=14)


class Restart(Exception):
    """The feed is started again."""


@settings(max_examples=100)
@given(STEPS)
def test_the_daemon_follows_the_node_through_any_events(steps: list[tuple[int, str, int, int]]) -> None:
    fake, ledger = FakeNode(20), Ledger()

    def happens(what: str, depth: int, more: int) -> None:
        event(what)
        match what:
            case "mine":
                fake.mine(depth)
            case "reorganise":
                fake.reorganise(depth, depth + more)
            case "shorten":
                fake.drop_last(depth)
            case "forget":
                for each in fake.drop_last(depth):
                    del fake.blocks[each]
            case "away":
                go_away()
            case "feed again":
                raise Restart

    def rest() -> None:
        comparable = fake.height >= len(ledger.chain) - 1 or ledger.chain[-1] in fake.blocks
        assert not comparable or ledger.chain == fake.chain
        if not events.events and ledger.chain == fake.chain:
            raise Scenario.Over
        events.events.popleft()[1]() if events.events else fake.mine()

    def best(_: list[Any]) -> Any:
        twice = len(fake.calls) > 1 and fake.calls[-2][0] == "getbestblockhash"
        if twice and answers[-1] == fake.chain[-1]:  # it has nothing else to ask
            rest()
        answers.append(fake.chain[-1])
        return fake.chain[-1]

    answers: list[str] = []
    events = Scenario(*[(after, lambda step=step: happens(*step)) for after, *step in steps])
    fake.lies["getbestblockhash"] = best
    for _ in range(len(steps) + 1):
        try:
            follow(ledger, Inside(fake, events.next))
        except Restart:
            event("fed again at a height that changed")
        except Scenario.Over:
            break
    assert ledger.chain == fake.chain and not events.events
    if ledger.rollbacks:
        event("rolled back")


def cheated(fake: FakeNode, ledger: Ledger, match: str, options: Options = OPTIONS) -> None:
    """Feed from a misbehaving node; the ledger keeps its blocks and may get more of the true chain."""
    before = list(ledger.chain)
    with pytest.raises(FeedError) as error:
        follow(ledger, Inside(fake), options)
    assert re.search(match, str(error.value)), error.value
    assert "\n" not in str(error.value) and "inside" in str(error.value)
    assert ledger.rollbacks == [] and ledger.chain[: len(before)] == before


@pytest.fixture
def fake() -> FakeNode:
    return FakeNode(20)


@pytest.fixture
def ledger(fake: FakeNode) -> Ledger:
    ledger = Ledger()
    follow(ledger, Inside(fake), replace(OPTIONS, to=10))
    return ledger


def reorganised(fake: FakeNode, ledger: Ledger) -> None:
    """Leave the daemon with points at 0, 2, 6, 8, 9 and 10, and the node on a branch that begins at 5."""
    assert [point.height for point in ledger.welcome().points] == [10, 9, 8, 6, 2, 0]
    fake.reorganise(16, 17)


REFUSALS = {
    "getblockheader": Fault(-32601, "Method not found"),
    "getblock": Fault(-1, "Block not available (pruned data)"),
    "getblockhash": Fault(-32603, "Internal error"),
}
ANSWERS: list[tuple[str, list[Any], str]] = [
    (
        "getblockheader",
        [None, "", "xx", "00" * 80, "ab" * 79, {}],
        "returned an invalid value as the header of block 3 ",
    ),
    ("getblock", [None, "xyz", 7, {"hash": "ab"}], "returned a value as block 11 [0-9a-f]{64} that is not hex"),
    ("getblock", ["", "00" * 200], "returned an invalid block 11 [0-9a-f]{64}: "),
    (
        "getbestblockhash",
        [None, 5, "", "ab" * 31, "zz" * 32, ["ab" * 32]],
        "answered getbestblockhash with a value that is not",
    ),
    (
        "getblockhash",
        [None, 5, "", "ab" * 31, "zz" * 32, ["ab" * 32]],
        "answered getblockhash with a value that is not",
    ),
    ("getblockchaininfo", [None, 5, {}, {"blocks": 5}], "the answer to getblockchaininfo: "),
    ("getblockchaininfo", [{"blocks": -1, "headers": 1}, {"blocks": 1 << 32, "headers": 1}], "to getblockchaininfo: "),
    ("getblockchaininfo", [{"blocks": 30, "headers": 30}], "returns another chain at every request"),
]


@pytest.mark.parametrize(("method", "answers", "match"), ANSWERS)
def test_malformed_answers_end_the_feed(
    fake: FakeNode, ledger: Ledger, method: str, answers: list[Any], match: str
) -> None:
    if method == "getblockheader":
        reorganised(fake, ledger)
    for answer in answers:
        fake.lies[method] = lambda _, answer=answer: answer  # type: ignore[misc]
        cheated(fake, ledger, match)


@pytest.mark.parametrize("method", REFUSALS)
def test_refused_calls_end_the_feed(fake: FakeNode, ledger: Ledger, method: str) -> None:
    if method == "getblockheader":
        reorganised(fake, ledger)

    def refuse(_: list[Any]) -> Any:
        raise REFUSALS[method]

    fake.lies[method] = refuse
    cheated(fake, ledger, f"refuses {method}: {re.escape(REFUSALS[method].message)}")


def give_another(fake: FakeNode) -> str:
    fake.lies["getblock"] = lambda _: fake.raw(15).hex()
    return f"returned block {fake.chain[15]} instead of block 11 {fake.chain[11]}"


def insert_unconnected(fake: FakeNode) -> str:
    raw = made_block([made_coinbase(b"x")], parent=bytes.fromhex(fake.chain[3]))
    fake.blocks[hash_of(raw).hex()] = raw
    fake.chain[13] = hash_of(raw).hex()
    return rf"contradicts itself: its block 13 {fake.chain[13]} does not follow {fake.chain[12]}"


def leave_the_chain(fake: FakeNode) -> str:
    raw = made_block([made_coinbase(b"x")], parent=b"\x77" * 32)
    fake.blocks[hash_of(raw).hex()] = raw
    fake.chain[9:] = [hash_of(raw).hex()] * 3
    return "contradicts itself: its block 9 [0-9a-f]{64} does not follow"


def repeat_blocks(fake: FakeNode) -> str:
    fake.chain[12:] = fake.chain[5:13]
    return "contradicts itself: its block 12 [0-9a-f]{64} does not follow"


def without_work(fake: FakeNode, height: int) -> None:
    raw = bytearray(made_block([made_coinbase(b"x")], parent=bytes.fromhex(fake.chain[height - 1])))
    while int.from_bytes(hash_of(bytes(raw))) <= REGTEST.proof_limit:
        raw[76] += 1
    fake.chain[height] = hash_of(bytes(raw)).hex()
    fake.blocks[fake.chain[height]] = bytes(raw)


def skip_the_work(fake: FakeNode) -> str:
    without_work(fake, 11)
    return "returned an invalid block 11 .*does not meet its own target"


@pytest.mark.parametrize("change", [give_another, insert_unconnected, leave_the_chain, repeat_blocks, skip_the_work])
def test_a_wrong_chain_ends_the_feed(fake: FakeNode, ledger: Ledger, change: Callable[[FakeNode], str]) -> None:
    cheated(fake, ledger, change(fake))


def test_wrong_headers_roll_nothing_back(fake: FakeNode, ledger: Ledger) -> None:
    reorganised(fake, ledger)
    without_work(fake, 5)
    cheated(fake, ledger, "does not meet its own target")
    fake.chain[5] = fake.chain[15]
    cheated(fake, ledger, f"its block 5 {fake.chain[15]} does not follow {fake.chain[4]}")


@pytest.mark.parametrize("after", range(5, 12))
def test_a_branch_that_disappears_while_its_headers_are_read(after: int) -> None:
    fake, ledger = FakeNode(300), Ledger()
    follow_to_tip(ledger, fake)
    fake.reorganise(150, 160)
    events = Scenario(
        (after, lambda: [fake.blocks.pop(each) for each in fake.drop_last(170)]), (0, lambda: fake.mine(200))
    )
    follow(ledger, Inside(fake, events.next), replace(OPTIONS, to=330))
    assert ledger.chain[:331] == fake.chain[:331] and not events.events


def test_endless_reorganisations_without_progress_end_the_feed(fake: FakeNode, ledger: Ledger) -> None:
    def restless(params: list[Any]) -> Any:
        fake.reorganise(12, 12)
        return fake.truth("getblock", params)

    fake.lies["getblock"] = restless
    with pytest.raises(FeedError, match="the node at inside has reorganised 100 times without progress"):
        follow(ledger, Inside(fake))
    assert len(ledger.rollbacks) == 100


def test_a_node_of_another_network_is_refused(fake: FakeNode, ledger: Ledger) -> None:
    cheated(fake, ledger, "is on regtest, not on mainnet: see --network", replace(OPTIONS, network=MAINNET))
    fake.chain[0] = fake.chain[5]
    cheated(fake, ledger, "is on an unknown network, whose first block is [0-9a-f]{64}, not on regtest")


def test_a_node_that_changes_its_network_is_refused() -> None:
    fake, ledger = FakeNode(3), Ledger()
    first = iter([fake.chain[0]])
    other = made_block([made_coinbase(b"x")], parent=bytes(32))
    fake.blocks[hash_of(other).hex()] = other
    fake.lies["getblockhash"] = lambda _: next(first, hash_of(other).hex())
    cheated(fake, ledger, "is on an unknown network")
    assert ledger.chain == []


@pytest.mark.parametrize("waits", [None, lambda: None], ids=["no waitfornewblock", "it returns at once"])
def test_a_node_that_reports_no_blocks_is_polled(waits: Callable[[], None] | None) -> None:
    fake, ledger = FakeNode(3), Ledger()
    polls = iter(range(200))
    fake.waits = waits

    def best(_: list[Any]) -> Any:
        if next(polls) % 10 == 9:
            fake.mine()
        return fake.chain[-1]

    fake.lies["getbestblockhash"] = best
    follow(ledger, Inside(fake), replace(OPTIONS, to=6))
    assert ledger.chain == fake.chain
    assert [method for method, _ in fake.calls].count("waitfornewblock") == 1


def test_a_node_that_answered_once_is_waited_for() -> None:
    fake, ledger, notices = FakeNode(8), Ledger(), list[str]()
    with pytest.raises(FeedError, match=r"^inside is away$"):
        follow(ledger, Inside(fake, go_away), replace(OPTIONS, wait_s=0.01), notices)
    assert notices
    notices.clear()
    events = Scenario(*[(0, lambda: None)] * 4, *[(0, go_away)] * 300)
    follow(ledger, Inside(fake, events.next), replace(OPTIONS, to=8, wait_s=0), notices)
    assert ledger.chain == fake.chain and not events.events
    assert notices == ["inside is away; trying again in 0 s"] * 300
