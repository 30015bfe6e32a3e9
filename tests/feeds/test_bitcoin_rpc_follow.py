"""Following a node that mines, reorganises, goes away, forgets and lies: what a daemon is told, message by message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from bitcoin_rpc_chain import FakeNode, Fault, Inside, Ledger, Scenario, goes_away
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_bitcoin_block import hash_of, made_block, made_coinbase

from feeds.bitcoin import patience, trail
from feeds.bitcoin.networks import MAINNET, REGTEST
from feeds.bitcoin.rpc import Follower, Options
from feeds.bitcoin.trail import Trail
from feeds.errors import FeedError
from feeds.run import NOWHERE
from handlers.events import BlockPersisted, Point

OPTIONS = Options(network=REGTEST, poll_s=0.001)


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "_PAUSES_S", (0.0,))
        yield


def tell(ledger: Ledger, node: Inside, options: Options = OPTIONS, told: list[str] | None = None) -> None:
    """Let the ledger hear everything, until the feed ends or fails."""
    follower = Follower(node, options)
    follower.hear(told.append if told is not None else list[str]().append)

    async def hear() -> None:
        with anyio.fail_after(20):
            async with aclosing(follower.messages(ledger.welcome())) as messages:
                await ledger.hear_all(messages)

    anyio.run(hear)


def tell_to(ledger: Ledger, fake: FakeNode, **options: Any) -> None:
    """Bring the ledger to the tip as it is now."""
    tell(ledger, Inside(fake), replace(OPTIONS, to=fake.height, **options))
    assert ledger.chain == fake.chain


def tell_story(
    ledger: Ledger, fake: FakeNode, *events: Callable[[], object], options: Options = OPTIONS, **more: Any
) -> None:
    """Let one thing happen whenever the ledger has come to the tip; after each it has to come there again."""
    left = list(events)

    def rest() -> None:
        if not left:
            raise Scenario.Over
        left.pop(0)()

    fake.waits = rest
    with pytest.raises(Scenario.Over):
        tell(ledger, Inside(fake), options, **more)


# --- along the chain -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 99, 100, 101, 250])
def test_from_the_first_block(length: int) -> None:
    fake, ledger = FakeNode(length), Ledger()
    tell_to(ledger, fake)
    assert [block.height for block in ledger.blocks] == list(range(length + 1))
    assert [output.spendable for tx in ledger.blocks[0].txs for output in tx.outputs] == [False]
    assert ledger.network_tips() == [length]


def test_what_a_daemon_has_is_not_sent_again() -> None:
    fake, ledger = FakeNode(50), Ledger()
    tell_to(ledger, fake)
    fake.mine(7)
    tell_to(ledger, fake)
    assert [block.height for block in ledger.blocks] == list(range(58))
    fake.calls.clear()
    tell_to(ledger, fake)
    assert "getblock" not in {method for method, _ in fake.calls}


def test_up_to_a_height_and_no_further() -> None:
    fake, ledger = FakeNode(30), Ledger()
    tell(ledger, Inside(fake), replace(OPTIONS, to=12))
    assert ledger.chain == fake.chain[:13]
    tell(ledger, Inside(fake), replace(OPTIONS, to=5))
    assert ledger.chain == fake.chain[:13]


def test_up_to_a_height_that_is_not_there_yet() -> None:
    fake, ledger = FakeNode(3), Ledger()
    fake.waits = fake.mine
    tell(ledger, Inside(fake), replace(OPTIONS, to=9))
    assert ledger.chain == fake.chain and fake.height == 9


def test_without_a_daemon() -> None:
    """For `--dry-run` and `--output` nobody is there who says a family."""
    ledger, fake = Ledger(), FakeNode(3)
    follower = Follower(Inside(fake), replace(OPTIONS, to=3))
    anyio.run(ledger.hear_all, follower.messages(NOWHERE))
    assert ledger.chain == fake.chain
    assert (follower.height, follower.tip) == (3, 3)


def test_one_block_after_the_other_at_the_tip() -> None:
    fake, ledger = FakeNode(5), Ledger()
    tell_story(ledger, fake, *[fake.mine] * 5)
    assert ledger.chain == fake.chain and fake.height == 10
    assert ledger.network_tips() == [5, 6, 7, 8, 9, 10]


def test_the_network_is_as_high_as_headers_or_operator_say() -> None:
    fake, ledger = FakeNode(5), Ledger()
    fake.headers = 3
    tell_to(ledger, fake)
    tell_to(ledger, fake, known_tip=20)
    assert ledger.network_tips() == [8, 20]


def test_outputs_that_nobody_can_spend_may_be_kept() -> None:
    fake, marked, kept = FakeNode(2), Ledger(), Ledger()
    tell_to(marked, fake)
    tell_to(kept, fake, mark_unspendable=False)
    assert [
        [o.spendable for tx in block.txs for o in tx.outputs] for block in (marked.blocks[0], marked.blocks[2])
    ] == [
        [False],
        [True, True, False],
    ]
    assert all(output.spendable for block in kept.blocks for tx in block.txs for output in tx.outputs)


def test_how_deep_the_node_keeps_blocks() -> None:
    fake, ledger = FakeNode(2500), Ledger()
    options = replace(OPTIONS, persisted_depth=6)
    tell_story(ledger, fake, fake.mine, lambda: fake.reorganise(3, 3), lambda: fake.reorganise(3, 5), options=options)
    persisted = ledger.heard(BlockPersisted)
    assert [message.height for message in persisted] == [994, 1994, 2494, 2495, 2497]
    assert [message.hash.hex() for message in persisted] == [fake.chain[message.height] for message in persisted]
    persisted_before = replace(ledger.welcome(), persisted_height=2497)
    follower = Follower(Inside(fake), replace(options, to=fake.height + 0))
    anyio.run(ledger.hear_all, follower.messages(persisted_before))
    assert len(ledger.heard(BlockPersisted)) == 5


def test_no_block_is_deep_enough_yet() -> None:
    fake, ledger = FakeNode(5), Ledger()
    tell_to(ledger, fake, persisted_depth=6)
    assert ledger.heard(BlockPersisted) == []


# --- reorganisations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(1, 41))
def test_every_depth_around_the_points(depth: int) -> None:
    """A feeder that just came knows only some of the daemon's points; it goes back to one of them, never too far."""
    fake, ledger = FakeNode(40), Ledger()
    tell_to(ledger, fake)
    points = [point.height for point in ledger.welcome().points]
    fake.reorganise(depth, depth + 1)
    tell_to(ledger, fake)
    assert ledger.rollbacks == [40 - max(point for point in points if point <= 40 - depth)]


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 31, 32, 33, 150])
def test_at_the_tip_exactly_what_has_to_go_goes(depth: int) -> None:
    fake, ledger = FakeNode(150), Ledger()
    tell_story(ledger, fake, lambda: fake.reorganise(depth, depth + 2), fake.mine)
    assert ledger.chain == fake.chain
    assert ledger.rollbacks == [depth]


def test_to_another_branch_of_the_same_length() -> None:
    fake, ledger = FakeNode(10), Ledger()
    tell_to(ledger, fake)
    fake.reorganise(2, 2)
    tell_to(ledger, fake)
    assert ledger.rollbacks == [2]


def test_blocks_that_the_node_takes_back_without_others_instead() -> None:
    """It knows what it took back, and of nothing better: that is no node that has not come so far yet."""
    fake, ledger = FakeNode(10), Ledger()
    tell_story(ledger, fake, lambda: fake.take_back(3), fake.mine)
    assert ledger.chain == fake.chain
    assert ledger.rollbacks == [3]


@pytest.mark.parametrize("why", ["it forgot", "it has headers"])
def test_a_node_that_has_not_come_as_far_is_waited_for(why: str) -> None:
    fake, ledger, told = FakeNode(20), Ledger(), list[str]()
    tell_to(ledger, fake)
    gone = fake.take_back(15)
    if why == "it forgot":
        blocks = [fake.blocks.pop(each) for each in gone]
    else:
        blocks = [fake.blocks[each] for each in gone]
        fake.headers = 15

    def come_nearer() -> None:
        assert len(ledger.chain) == 21
        fake.chain.append(gone[fake.height - 5])
        fake.blocks[fake.chain[-1]] = blocks[fake.height - 6]
        fake.headers = 20 - fake.height if fake.headers else 0

    tell_story(ledger, fake, *[come_nearer] * 15, fake.mine, told=told)
    assert ledger.chain == fake.chain and fake.height == 21
    assert ledger.rollbacks == []
    assert told == ["the node at inside is at height 5, the daemon at 20: waiting until it has come as far"]


def test_a_node_that_comes_back_with_another_chain() -> None:
    """It lost everything, and mines anew; once its chain and ours can be compared, ours goes."""
    fake, ledger = FakeNode(20), Ledger()
    tell_to(ledger, fake)
    for each in fake.take_back(20):
        del fake.blocks[each]
    tell_story(ledger, fake, *[fake.mine] * 22)
    assert ledger.chain == fake.chain
    assert ledger.rollbacks == [20]


def test_a_reorganisation_below_all_points_is_another_chain() -> None:
    fake, ledger = FakeNode(40), Ledger()
    tell_to(ledger, fake)
    points = ledger.welcome(floor=30)
    fake.reorganise(11, 12)
    with pytest.raises(FeedError, match="none of its blocks from height 30 to 40 that can be compared is on that of"):
        anyio.run(ledger.hear_all, Follower(Inside(fake), OPTIONS).messages(points))
    assert ledger.rollbacks == []


@pytest.mark.parametrize("after", range(12))
def test_a_reorganisation_while_we_read(after: int) -> None:
    fake, ledger = FakeNode(10), Ledger()
    tell_to(ledger, fake)
    fake.mine(10)
    story = Scenario((after, lambda: fake.reorganise(13, 20)))
    tell(ledger, Inside(fake, story.next), replace(OPTIONS, to=27))
    assert ledger.chain == fake.chain and not story.events


@pytest.mark.parametrize("after", range(8))
def test_a_chain_that_gets_shorter_while_we_read(after: int) -> None:
    fake, ledger = FakeNode(5), Ledger()
    tell_to(ledger, fake)
    fake.mine(300)
    story = Scenario((after, lambda: fake.reorganise(298, 1)))

    def rest() -> None:
        assert ledger.chain == fake.chain
        if fake.height > 12:
            raise Scenario.Over
        fake.mine()

    fake.waits = rest
    with pytest.raises(Scenario.Over):
        tell(ledger, Inside(fake, story.next))


# --- any story -----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.integers(0, 25),
        st.sampled_from(["mine", "reorganise", "take back", "forget", "away", "feed again"]),
        st.integers(1, 30),
        st.integers(0, 12),
    ),
    max_size=14,
)


class Restart(Exception):
    """The feed, or the daemon, is started again."""


@settings(max_examples=400)
@given(STEPS)
def test_any_story(steps: list[tuple[int, str, int, int]]) -> None:
    """Whatever happens and whenever, in the end the daemon is where the node is, and never was where no chain was."""
    fake, ledger = FakeNode(20), Ledger()

    def happens(what: str, depth: int, more: int) -> None:
        event(what)
        match what:
            case "mine":
                fake.mine(depth)
            case "reorganise":
                fake.reorganise(depth, depth + more)
            case "take back":
                fake.take_back(depth)
            case "forget":
                for each in fake.take_back(depth):
                    del fake.blocks[each]
            case "away":
                goes_away()
            case "feed again":
                raise Restart

    def rest() -> None:
        comparable = fake.height >= len(ledger.chain) - 1 or ledger.chain[-1] in fake.blocks
        assert not comparable or ledger.chain == fake.chain
        if not story.events and ledger.chain == fake.chain:
            raise Scenario.Over
        story.events.popleft()[1]() if story.events else fake.mine()

    def best(_: list[Any]) -> Any:
        twice = len(fake.calls) > 1 and fake.calls[-2][0] == "getbestblockhash"
        if twice and answers[-1] == fake.chain[-1]:  # it has nothing else to ask
            rest()
        answers.append(fake.chain[-1])
        return fake.chain[-1]

    answers: list[str] = []
    story = Scenario(*[(after, lambda step=step: happens(*step)) for after, *step in steps])
    fake.lies["getbestblockhash"] = best
    for _ in range(len(steps) + 1):
        try:
            tell(ledger, Inside(fake, story.next))
        except Restart:
            event("fed again at a height that changed")
        except Scenario.Over:
            break
    assert ledger.chain == fake.chain and not story.events
    if ledger.rollbacks:
        event("rolled back")


# --- lies ----------------------------------------------------------------------------------------------------------


def lied_to(fake: FakeNode, ledger: Ledger, match: str, options: Options = OPTIONS) -> None:
    """Feed from a node that lies; the daemon has what it had, or more of the true chain."""
    before = list(ledger.chain)
    with pytest.raises(FeedError) as lie:
        tell(ledger, Inside(fake), options)
    assert re.search(match, str(lie.value)), lie.value
    assert "\n" not in str(lie.value) and "inside" in str(lie.value)
    assert ledger.rollbacks == [] and ledger.chain[: len(before)] == before


@pytest.fixture
def fake() -> FakeNode:
    return FakeNode(20)


@pytest.fixture
def ledger(fake: FakeNode) -> Ledger:
    """Give a ledger that has half of the chain."""
    ledger = Ledger()
    tell(ledger, Inside(fake), replace(OPTIONS, to=10))
    return ledger


def test_another_block_than_was_asked_for(fake: FakeNode, ledger: Ledger) -> None:
    fake.lies["getblock"] = lambda asked: fake.raw(15).hex()
    lied_to(fake, ledger, f"gives block {fake.chain[15]} for block 11 {fake.chain[11]}")


def test_a_block_that_does_not_follow(fake: FakeNode, ledger: Ledger) -> None:
    """Its hash is what was asked for, and the node stands by it."""
    stranger = made_block([made_coinbase(b"x")], parent=bytes.fromhex(fake.chain[3]))
    fake.chain[13] = hash_of(stranger).hex()
    fake.blocks[fake.chain[13]] = stranger
    lied_to(fake, ledger, rf"is wrong: its block 13 {fake.chain[13]} does not follow {fake.chain[12]}")
    assert len(ledger.chain) == 13


def test_a_branch_that_hangs_in_the_air_takes_nothing_back(fake: FakeNode, ledger: Ledger) -> None:
    stranger = made_block([made_coinbase(b"x")], parent=b"\x77" * 32)
    fake.chain[9:] = [hash_of(stranger).hex()] * 3
    fake.blocks[fake.chain[9]] = stranger
    lied_to(fake, ledger, "is wrong: its block 9 [0-9a-f]{64} does not follow")


def reorganised(fake: FakeNode, ledger: Ledger) -> None:
    """Leave the daemon with points at 0, 2, 6, 8, 9 and 10, and the node with another branch from 5 on."""
    assert [point.height for point in ledger.welcome().points] == [10, 9, 8, 6, 2, 0]
    fake.reorganise(16, 17)


@pytest.mark.parametrize("answer", [None, "", "xx", "00" * 80, "ab" * 79, {}])
def test_a_header_that_is_none(fake: FakeNode, ledger: Ledger, answer: Any) -> None:
    reorganised(fake, ledger)
    fake.lies["getblockheader"] = lambda _: answer
    lied_to(fake, ledger, f"gives as the header of block 3 {fake.chain[3]} is not that")


def test_headers_that_do_not_follow_each_other(fake: FakeNode, ledger: Ledger) -> None:
    """Blocks that the daemon may have lie between its point and the gap, and the node has them all."""
    reorganised(fake, ledger)
    fake.chain[5] = fake.chain[15]
    lied_to(fake, ledger, f"its block 5 {fake.chain[15]} does not follow {fake.chain[4]}")


def test_a_header_without_work(fake: FakeNode, ledger: Ledger) -> None:
    reorganised(fake, ledger)
    lazy = bytearray(made_block([made_coinbase(b"x")], parent=bytes.fromhex(fake.chain[4])))
    while int.from_bytes(hash_of(bytes(lazy))) <= REGTEST.proof_limit:
        lazy[76] += 1
    fake.chain[5] = hash_of(bytes(lazy)).hex()
    fake.blocks[fake.chain[5]] = bytes(lazy)
    lied_to(fake, ledger, "does not meet its own target")


def test_headers_that_are_refused(fake: FakeNode, ledger: Ledger) -> None:
    def forbidden(_: list[Any]) -> Any:
        raise Fault(-32601, "Method not found")

    reorganised(fake, ledger)
    fake.lies["getblockheader"] = forbidden
    lied_to(fake, ledger, "refuses getblockheader: Method not found")


@pytest.mark.parametrize("after", range(5, 12))
def test_a_branch_that_goes_while_its_headers_are_read(after: int) -> None:
    fake, ledger = FakeNode(300), Ledger()
    tell_to(ledger, fake)
    fake.reorganise(150, 160)
    story = Scenario(
        (after, lambda: [fake.blocks.pop(each) for each in fake.take_back(170)]), (0, lambda: fake.mine(200))
    )
    tell(ledger, Inside(fake, story.next), replace(OPTIONS, to=330))
    assert ledger.chain[:331] == fake.chain[:331] and not story.events


def test_a_chain_that_goes_round(fake: FakeNode, ledger: Ledger) -> None:
    fake.chain[12:] = fake.chain[5:13]
    lied_to(fake, ledger, "is wrong: its block 12 [0-9a-f]{64} does not follow")


def test_a_chain_that_goes_back_and_forth(fake: FakeNode, ledger: Ledger) -> None:
    def restless(asked: list[Any]) -> Any:
        fake.reorganise(12, 12)
        return fake.truth("getblock", asked)

    fake.lies["getblock"] = restless
    with pytest.raises(FeedError, match="the node at inside reorganises without progress: 100 times by now"):
        tell(ledger, Inside(fake))
    assert len(ledger.rollbacks) == 100


def test_one_reorganisation_after_the_other() -> None:
    """As long as the chain gets higher there is nothing wrong with that."""
    fake, ledger = FakeNode(5), Ledger()
    tell_story(ledger, fake, *[lambda: fake.reorganise(3, 4)] * 150)
    assert ledger.chain == fake.chain and len(ledger.rollbacks) == 150


def test_more_blocks_than_there_are(fake: FakeNode, ledger: Ledger) -> None:
    fake.lies["getblockchaininfo"] = lambda _: {"blocks": 30, "headers": 30}
    lied_to(fake, ledger, "gives another chain at every request")


def test_work_that_nobody_did(fake: FakeNode, ledger: Ledger) -> None:
    lazy = bytearray(made_block([made_coinbase(b"x")], parent=bytes.fromhex(fake.chain[10]), bits=0x207FFFFF))
    while int.from_bytes(hash_of(bytes(lazy))) <= REGTEST.proof_limit:
        lazy[76] += 1
    fake.chain[11] = hash_of(bytes(lazy)).hex()
    fake.blocks[fake.chain[11]] = bytes(lazy)
    lied_to(fake, ledger, "gives block 11 .*does not meet its own target")


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (None, "gives as block 11 [0-9a-f]{64} is not hex"),
        ("xyz", "is not hex"),
        (7, "is not hex"),
        ({"hash": "ab"}, "is not hex"),
        ("", "gives block 11 [0-9a-f]{64}: 0 bytes are no block"),
        ("00" * 200, "gives block 11 [0-9a-f]{64}: "),
    ],
)
def test_what_is_no_block(fake: FakeNode, ledger: Ledger, answer: Any, match: str) -> None:
    fake.lies["getblock"] = lambda _: answer
    lied_to(fake, ledger, match)


@pytest.mark.parametrize("method", ["getbestblockhash", "getblockhash"])
@pytest.mark.parametrize("answer", [None, 5, "", "ab" * 31, "zz" * 32, ["ab" * 32]])
def test_what_is_no_hash(fake: FakeNode, ledger: Ledger, method: str, answer: Any) -> None:
    fake.lies[method] = lambda _: answer
    lied_to(fake, ledger, f"answers to {method} is no hash")


@pytest.mark.parametrize(
    "answer", [None, 5, {}, {"blocks": 5}, {"blocks": -1, "headers": 1}, {"blocks": 1 << 32, "headers": 1}]
)
def test_what_is_no_height(fake: FakeNode, ledger: Ledger, answer: Any) -> None:
    fake.lies["getblockchaininfo"] = lambda _: answer
    lied_to(fake, ledger, "answers to getblockchaininfo: ")


def test_a_block_that_is_not_there_any_more(fake: FakeNode, ledger: Ledger) -> None:
    def pruned(_: list[Any]) -> Any:
        raise Fault(-1, "Block not available (pruned data)")

    fake.lies["getblock"] = pruned
    lied_to(fake, ledger, r"inside refuses getblock: Block not available \(pruned data\) \(-1\)")


def test_hashes_that_are_refused(fake: FakeNode, ledger: Ledger) -> None:
    def forbidden(_: list[Any]) -> Any:
        raise Fault(-32603, "Internal error")

    fake.lies["getblockhash"] = forbidden
    lied_to(fake, ledger, "refuses getblockhash: Internal error")


def test_another_network(fake: FakeNode, ledger: Ledger) -> None:
    lied_to(fake, ledger, "is on regtest, not on mainnet: see --network", replace(OPTIONS, network=MAINNET))
    fake.chain[0] = fake.chain[5]
    lied_to(fake, ledger, "is on an unknown network, whose first block is [0-9a-f]{64}, not on regtest")


def test_another_network_behind_our_back() -> None:
    """The first look was at the right one."""
    fake, ledger = FakeNode(3), Ledger()
    looks = iter([fake.chain[0]])
    stranger = made_block([made_coinbase(b"x")], parent=bytes(32))
    fake.blocks[hash_of(stranger).hex()] = stranger
    fake.lies["getblockhash"] = lambda asked: next(looks, hash_of(stranger).hex())
    lied_to(fake, ledger, "is on an unknown network")
    assert ledger.chain == []


# --- waiting for news ----------------------------------------------------------------------------------------------


def test_a_node_that_does_not_tell_is_asked() -> None:
    fake, ledger = FakeNode(3), Ledger()
    rounds = iter(range(40))

    def best(_: list[Any]) -> Any:
        if next(rounds) % 10 == 9:
            fake.mine()
        return fake.chain[-1]

    fake.lies["getbestblockhash"] = best
    tell(ledger, Inside(fake), replace(OPTIONS, to=6))
    assert ledger.chain == fake.chain
    assert [method for method, _ in fake.calls].count("waitfornewblock") == 1


def test_a_node_that_tells_of_blocks_that_are_not_there_is_asked() -> None:
    fake, ledger = FakeNode(3), Ledger()
    asked = iter(range(100))
    fake.waits = lambda: None

    def best(_: list[Any]) -> Any:
        if next(asked) == 50:
            fake.mine()
        return fake.chain[-1]

    fake.lies["getbestblockhash"] = best
    tell(ledger, Inside(fake), replace(OPTIONS, to=4, poll_s=0.02))
    assert [method for method, _ in fake.calls].count("waitfornewblock") == 1


def test_an_absent_node_is_waited_for_one_line_each() -> None:
    fake, ledger, told = FakeNode(8), Ledger(), list[str]()
    story = Scenario((0, goes_away), (0, goes_away), (6, goes_away))
    tell(ledger, Inside(fake, story.next), replace(OPTIONS, to=8), told)
    assert ledger.chain == fake.chain
    assert told == ["inside is away; trying again in 0 s"] * 3


def test_a_node_that_never_was_there_is_given_up() -> None:
    told: list[str] = []
    with pytest.raises(FeedError, match=r"^inside is away$"):
        tell(Ledger(), Inside(FakeNode(), goes_away), replace(OPTIONS, wait_s=0.01), told)
    assert told


def test_a_node_that_was_there_is_not_given_up() -> None:
    fake, ledger = FakeNode(8), Ledger()
    story = Scenario(*[(0, lambda: None)] * 4, *[(0, goes_away)] * 300)
    tell(ledger, Inside(fake, story.next), replace(OPTIONS, to=8, wait_s=0))
    assert ledger.chain == fake.chain and not story.events


# --- the trail -----------------------------------------------------------------------------------------------------


def place(height: int, branch: int = 0) -> Point:
    return Point(height, height, height.to_bytes(31, "big") + bytes([branch]))


@given(st.sets(st.integers(0, 300)), st.integers(-1, 300))
def test_where_another_branch_begins(heights: set[int], common: int) -> None:
    points = [place(height) for height in sorted(heights)]
    asked: list[Point] = []

    async def is_on_chain(point: Point) -> bool:
        asked.append(point)
        return point.height <= common

    base, lost = anyio.run(Trail(points[::-1]).fork, is_on_chain)
    assert base == max((point for point in points if point.height <= common), key=lambda p: p.height, default=None)
    assert lost == min((point for point in points if point.height > common), key=lambda p: p.height, default=None)
    assert len(asked) <= 2 + len(points).bit_length()


def test_the_trail_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "_RECENT", 100)
    walked = Trail([])
    assert (walked.last, walked.height, walked.at(0)) == (None, -1, None)
    for height in range(5000):
        walked.add(place(height))
        assert len(walked) <= 200
        assert (walked.height, walked.last, walked.at(height)) == (height, place(height), place(height))
    assert walked.at(4950) == place(4950) and walked.at(3) is None and walked.at(5000) is None
    base, lost = anyio.run(walked.fork, lambda point: on_chain_below(point, 1))
    assert base == place(0) and lost is not None
    walked.cut(place(4950))
    assert (walked.height, walked.at(4949)) == (4950, place(4949))


async def on_chain_below(point: Point, height: int) -> bool:
    return point.height < height
