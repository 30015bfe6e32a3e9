"""A server's chain, followed: where it begins, rollbacks, lost connections, where it ends."""

import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from ogmios_server import Chain, Entry, Troubles, chain_of, serving
from test_ogmios_blocks import boundary, made, made_output, made_tx

from feeds.cardano.eras import MAINNET
from feeds.cardano.ogmios import OgmiosChain, Trail
from feeds.errors import FeedError
from feeds.run import NOWHERE
from handlers.events import (
    BlockApplied,
    GenesisOutput,
    GenesisOutputs,
    Hello,
    Inbound,
    Output,
    Point,
    Rollback,
    RollbackPoint,
    Welcome,
)

GENESIS = GenesisOutputs(outputs=[GenesisOutput(b"\x01" * 32, 0, Output(b"\x61" + bytes(28), 5))])


def blocks(count: int, after: Entry | None = None, branch: str = "", **more: Any) -> Chain:
    chain: Chain = []
    for _ in range(count):
        before = chain[-1] if chain else after
        height = 1 if before is None else before.height + 1
        name = blake2b(f"{branch}{height}".encode(), digest_size=32).hexdigest()
        ancestor = "genesis" if before is None else before.id
        block = made(made_tx(made_output(), id=name[::-1]), id=name, ancestor=ancestor, height=height, slot=20 * height)
        chain += chain_of([block | more], after=before)
    return chain


def point(entry: Entry) -> Point:
    return Point(entry.height, entry.slot, bytes.fromhex(entry.id))


def welcome(chain: Sequence[Entry], floor: bool = False) -> Welcome:
    """Return a daemon's answer; with a floor, it cannot roll back below its first block."""
    points = [point(entry) for entry in reversed(chain)]
    return replace(NOWHERE, tip=points[0], points=points, rollback_floor=points[-1] if floor else None)


def follow(
    url: str,
    at: Welcome = NOWHERE,
    *,
    most: int = 1 << 30,
    notices: list[str] | None = None,
    hellos: bool = False,
    slowly: Callable[[], None] = lambda: None,
    **options: Any,
) -> list[Inbound]:
    chain = OgmiosChain(url, MAINNET, **options)
    if notices is not None:
        chain.notify(notices.append)

    async def main() -> list[Inbound]:
        got: list[Inbound] = []
        with anyio.fail_after(20):
            async with aclosing(chain.messages(at)) as messages:
                async for message in messages:
                    slowly()
                    if hellos or not isinstance(message, Hello):
                        got.append(message)
                    if len(got) >= most:
                        break
        return got

    return anyio.run(main, backend_options={"use_uvloop": True})


def fails(url: str, at: Welcome = NOWHERE, **options: Any) -> str:
    with pytest.raises(FeedError) as error:
        follow(url, at, **options)
    return str(error.value)


def heights(messages: Sequence[Inbound]) -> list[int | str | None]:
    """Return the height of each block, `-height` of each rollback."""
    found: list[int | str | None] = []
    for message in messages:
        if isinstance(message, BlockApplied):
            found.append(message.height)
        elif isinstance(message, Rollback):
            found.append("-origin" if isinstance(message.to, str) else f"-{message.to.height}")
    return found


def back_to(entry: Entry, height: bool = True) -> Rollback:
    to = RollbackPoint(slot=entry.slot, hash=bytes.fromhex(entry.id), height=entry.height if height else None)
    return Rollback(to=to)


def tips_after(messages: Sequence[Inbound], chain: Sequence[Entry] = ()) -> list[bytes]:
    """Apply messages to a chain; return the hashes of its blocks."""
    have = [bytes.fromhex(entry.id) for entry in chain]
    for message in messages:
        if isinstance(message, BlockApplied):
            assert not have or message.prev_hash == have[-1]
            have.append(message.hash)
        elif isinstance(message, Rollback):
            if isinstance(message.to, str):
                have.clear()
            else:
                assert message.to.hash in have[:-1], "a rollback to where we are, or to nowhere"
                del have[have.index(message.to.hash) + 1 :]
    return have


def test_an_empty_daemon_gets_genesis_and_every_block() -> None:
    chain = blocks(250)
    with serving(chain) as server:
        messages = follow(server.url, to_height=250, genesis=GENESIS)
        assert server.requests == [["origin"]]
    assert messages[0] == GENESIS
    assert heights(messages[1:]) == list(range(1, 251))
    assert tips_after(messages[1:]) == [bytes.fromhex(entry.id) for entry in chain]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_feed_continues_after_the_intersection(repeats: bool) -> None:
    chain = blocks(30)
    other = chain[:15] + blocks(5, chain[14], "other")
    with serving(chain) as server:
        server.no_first_backward = not repeats
        assert heights(follow(server.url, welcome(chain[:20]), to_height=30, genesis=GENESIS)) == list(range(21, 31))
        assert server.requests[0][0] == chain[19].point()
        messages = follow(server.url, welcome(other), to_height=17)
        assert messages[0] == back_to(chain[14]) and heights(messages[1:]) == [16, 17]
        assert heights(follow(server.url, to_height=2)) == [1, 2]


def test_without_a_common_point_the_daemon_rolls_back_to_the_origin_if_it_can() -> None:
    with serving(blocks(5)) as server:
        messages = follow(server.url, welcome(blocks(3, branch="other")), to_height=2, genesis=GENESIS)
        assert server.requests.pop()[-1] == "origin"
        assert messages[0] == Rollback(to="origin")
        assert heights(messages[1:]) == [1, 2]
        what = fails(server.url, welcome(blocks(3, branch="other"), floor=True))
        assert "origin" not in server.requests[0]
    assert "none of the daemon's 3 points up to height 3 is on the server's chain" in what
    assert "No intersection found. (code 1000)" in what
    assert "\n" not in what


def test_points_are_dense_near_the_tip_and_sparse_below() -> None:
    chain = blocks(3000)
    trail = Trail(welcome(chain, floor=True))
    slots = [each.slot for each in trail.points() if not isinstance(each, str)]
    assert slots[:32] == [20 * height for height in range(3000, 2968, -1)]
    assert slots[-1] == 20
    assert len(slots) < 80
    back = [3000 - slot // 20 for slot in slots]
    assert all(after <= 1 + before * 1.125 for before, after in pairwise(back))


def test_utxo_092_backward_then_forward() -> None:
    chain = blocks(10)
    other = chain[:6] + blocks(6, chain[5], "other")
    with serving(chain) as server:
        server.on_answer = lambda n: server.switch(other) if n == 11 else None
        messages = follow(server.url, to_height=12)
    assert heights(messages) == [*range(1, 11), "-6", *range(7, 13)]
    assert messages[10] == back_to(chain[5])
    assert tips_after(messages) == [bytes.fromhex(entry.id) for entry in other]
    other = chain[:4] + blocks(9, chain[3], "other")  # the fork is below the points that the feed knows
    with serving(chain) as server:
        server.on_answer = lambda n: server.switch(other) if n == 3 else None
        messages = follow(server.url, welcome(chain[6:8], floor=True), to_height=12)
    assert heights(messages) == [9, 10, "-None", *range(5, 13)]
    assert messages[2] == back_to(chain[3], height=False)


def test_utxo_097_the_origin_is_before_the_first_block() -> None:
    first, second = blocks(3), blocks(4, branch="other")
    with serving([]) as server:
        threading.Timer(0.1, lambda: server.switch(first)).start()
        server.on_answer = lambda n: server.switch(second) if n == 4 else None
        messages = follow(server.url, to_height=4, genesis=GENESIS)
    assert messages[0] == GENESIS
    assert Rollback(to="origin") in messages
    assert heights(messages) == [1, 2, 3, "-origin", 1, 2, 3, 4]


def test_a_block_that_does_not_follow_ends_the_feed() -> None:
    chain = blocks(9)
    with serving(chain) as server:
        server.instead[5] = {"result": {"direction": "forward", "block": chain[7].block, "tip": "origin"}}
        what = fails(server.url)
    assert f"block 8 {chain[7].id} does not follow block 3 {chain[2].id}" in what


def went(entry: Entry, direction: str) -> Any:
    where = {"point": entry.point()} if direction == "backward" else {"block": entry.block}
    return {"result": {"direction": direction, "tip": entry.point() | {"height": entry.height}} | where}


@pytest.mark.parametrize("forth", [True, False], ids=["and forth", "only"])
def test_endless_rollbacks_end_the_feed(forth: bool) -> None:
    chain = blocks(500)
    turn = [went(chain[3], "backward"), *([went(chain[4], "forward")] if forth else [])]
    answers = [went(chain[3], "backward"), *(went(entry, "forward") for entry in chain[4:8]), *turn * 150]
    with serving(chain) as server:
        server.instead = dict(enumerate(answers, 1))
        what = fails(server.url, welcome(chain[:4]))
    assert what == f"{server.url}: the chain has changed 100 times without progress"


def test_lost_connections_are_no_rollbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeds.cardano.ogmios._PAUSES_S", (0.0,))
    chain = blocks(9)

    def drop(_: int) -> None:
        if server.connections < 120:
            threading.Timer(0.005, server.drop).start()  # the answer shall arrive
        else:
            server.switch(chain)

    with serving(chain[:4]) as server:
        server.on_answer = drop
        messages = follow(server.url, welcome(chain[:4]), to_height=9)
        assert server.connections >= 120
    assert tips_after(messages, chain[:4]) == [bytes.fromhex(entry.id) for entry in chain]


def test_any_number_of_rollbacks_with_progress_is_followed() -> None:
    chain = blocks(500)
    answers = [went(chain[0], "backward")]
    for before, entry in pairwise(chain[:150]):
        answers += [went(entry, "forward"), went(before, "backward"), went(entry, "forward")]
    with serving(chain) as server:
        server.instead = dict(enumerate(answers, 1))
        messages = follow(server.url, welcome(chain[:1]), to_height=150)
    assert tips_after(messages, chain[:1]) == [bytes.fromhex(entry.id) for entry in chain[:150]]
    assert sum(isinstance(message, Rollback) for message in messages) > 100


@pytest.mark.parametrize("seed", range(2))
def test_forks_and_lost_connections_at_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeds.cardano.ogmios._PAUSES_S", (0.01,))
    chain = blocks(400)
    with serving(chain) as server:
        troubles = Troubles(server, seed, odds=0.03, deepest=30)
        messages = follow(server.url, to_height=400)
        assert tips_after(messages) == [bytes.fromhex(entry.id) for entry in chain]
        assert 1 < server.connections <= 1 + troubles.happened.count("drop")
    assert {"drop", "back"} <= set(troubles.happened)
    assert any(isinstance(message, Rollback) for message in messages)


def test_the_feed_ends_at_a_height() -> None:
    chain = blocks(30)
    with serving(chain) as server:
        assert heights(follow(server.url, to_height=7)) == list(range(1, 8))
        assert heights(follow(server.url, welcome(chain[:7]), to_height=7)) == []
        assert heights(follow(server.url, welcome(chain[:9]), to_height=7)) == []
        assert heights(follow(server.url, welcome(chain[5:9]), to_height=30)) == list(range(10, 31))


def byron(count: int, slot: int, height: int, before: Entry) -> Chain:
    first = chain_of([boundary(height, before.id)], [slot], before)
    names = [blake2b(f"byron{slot}/{n}".encode(), digest_size=32).hexdigest() for n in range(count)]
    ancestors = [first[0].id, *names]
    mains = [
        made(type="bft", era="byron", id=name, ancestor=ancestors[n], height=height + 1 + n, slot=slot + n)
        for n, name in enumerate(names)
    ]
    return first + chain_of(mains, after=first[0])


def byron_chain() -> Chain:
    start = chain_of([boundary(0, "5f" * 32) | {"id": "e0" * 32}], [0])
    main = chain_of([made(type="bft", era="byron", id="a1" * 32, ancestor="e0" * 32, height=1, slot=3)], after=start[0])
    return start + main + byron(3, 21_600, 1, main[0])


def test_boundary_blocks_have_slots_and_points() -> None:
    chain = byron_chain()
    with serving(chain) as server:
        messages = follow(server.url, to_height=4)
        slots = [each.slot for each in messages if isinstance(each, BlockApplied)]
        assert slots == [0, 3, 21_600, 21_600, 21_601, 21_602]
        for known in range(1, len(chain)):
            server.requests.clear()
            more = follow(server.url, welcome(chain[:known]), to_height=4)
            assert tips_after(more, chain[:known]) == tips_after(messages)
            assert server.requests[0][0] == chain[known - 1].point()

        assert heights(follow(server.url, to_height=1)) == [0, 1, 1]
        assert heights(follow(server.url, to_height=0)) == [0]
        server.switch(chain[:2])
        assert heights(follow(server.url, to_height=1)) == [0, 1], "nothing more may come"
