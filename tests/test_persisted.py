"""`BlockPersisted`: accepted for a block of our chain only, revoked by a rollback below it, and remembered."""

from __future__ import annotations

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, error, statuses
from scenarios import back_to, block, chain, digest, point

pytestmark = [pytest.mark.configured(utxo={"prune_depth": 3, "rollback_window": 10}), pytest.mark.sound]

FAR = {"network_tip": {"height": 1_000_000}}


@pytest.fixture
def encoding() -> Encoding:
    return "frames"


def persisted(of: Message | int, **fields: object) -> Message:
    """Return the message for a block, with its hash, or for a height alone."""
    place = {"height": of} if isinstance(of, int) else {"height": of["height"], "hash": of["hash"]}
    return {"type": "BlockPersisted"} | place | fields


def height(client: Client) -> int | None:
    """Return how far blocks are persisted, as a commit has left it."""
    known: int | None = client.hello()["persisted_height"]
    return known


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_above_the_tip_is_a_gap(daemon: Daemon, encoding: Encoding) -> None:
    blocks = chain(5)
    with daemon.client(encoding) as client:
        for what in (0, 6, 2**63, 2**64 - 1):
            assert error(client.ask(persisted(what)), "gap", retryable=True) == {"tip": None}
        client.feed(blocks)
        for what in (6, 7, 2**63, 2**64 - 1):
            for message in (persisted(what), persisted(what, hash=blocks[4]["hash"])):
                answer = client.ask(message)
                assert error(answer, "gap", retryable=True) == {"tip": point(blocks[4])}
                assert str(what) in answer["message"] and "send BlockPersisted again" in answer["message"]
        assert height(client) is None
        ack(client.ask(persisted(blocks[4])), "accepted", point(blocks[4]))
        assert height(client) == 5


def test_another_chains_block_is_unknown(client: Client) -> None:
    blocks, others = chain(5), chain(5, branch="other")
    client.feed(blocks)
    for wrong in (persisted(others[2]), persisted(3, hash=blocks[3]["hash"]), persisted(others[4])):
        assert error(client.ask(wrong), "unknown_point") == {"tip": point(blocks[4])}
    assert height(client) is None
    assert statuses(client.feed([persisted(blocks[2]), persisted(others[2]), persisted(blocks[1]), persisted(2)])) == [
        "accepted",
        "unknown_point",
        "duplicate",
        "duplicate",
    ]
    assert height(client) == 3


def test_height_alone(client: Client) -> None:
    """Heights from 100 on, where the store begins, and one that a feeder has left out."""
    first = block(None, height=100)
    second = block(first, height=102)
    client.feed([first, second])
    assert statuses(client.feed(map(persisted, (99, 100, 102, 103)))) == ["accepted", "accepted", "accepted", "gap"]
    error(client.ask(persisted(101)), "unknown_point")
    assert height(client) == 102


def test_boundary_blocks_share_a_height(client: Client) -> None:
    one = block(None)
    boundary = block(one, height=1, slot=21)
    two = block(boundary, height=2, slot=22)
    client.feed([one, boundary, two])
    story = [persisted(one), persisted(boundary), persisted(1), persisted(1, hash=two["hash"]), persisted(two)]
    assert statuses(client.feed(story)) == ["accepted", "duplicate", "duplicate", "unknown_point", "accepted"]
    ack(client.ask(back_to(boundary)), "rolled_back", point(boundary))
    assert height(client) == 1


def test_blocks_that_wait_for_the_same_commit(daemon: Daemon, client: Client) -> None:
    blocks, others = chain(40), chain(40, branch="other")
    story: list[Message] = []
    for ours, theirs in zip(blocks, others, strict=True):
        story += [ours, persisted(ours["height"] + 1), persisted(theirs), persisted(ours)]
    assert statuses(client.feed(story)) == ["applied", "gap", "unknown_point", "accepted"] * 40
    assert height(client) == 40
    daemon.kill()
    daemon.start()
    with daemon.client() as later:
        assert height(later) == 40


def test_a_rollback_takes_it_back(daemon: Daemon, client: Client) -> None:
    blocks = chain(8)
    other = chain(5, blocks[3], branch="other")
    client.feed([*blocks, persisted(blocks[6])])
    ack(client.ask(back_to(blocks[6])), "rolled_back", point(blocks[6]))
    assert height(client) == 7  # it stays
    ack(client.ask(back_to(blocks[3])), "rolled_back", point(blocks[3]))
    assert height(client) == 4
    daemon.kill()
    daemon.start()
    with daemon.client() as later:
        assert height(later) == 4
        error(later.ask(persisted(blocks[6])), "gap", retryable=True)
        client.close()
        later.feed(other)
        error(later.ask(persisted(blocks[6])), "unknown_point")
        ack(later.ask(persisted(other[2])), "accepted", point(other[4]))
        assert height(later) == 7


def test_a_rollback_between_messages_that_wait(client: Client) -> None:
    """All in one burst: blocks, how far they are persisted, the way back, another branch and how far that is."""
    blocks = chain(6)
    other = chain(3, blocks[2], branch="other")
    story = [*blocks, persisted(blocks[5]), back_to(blocks[2]), persisted(blocks[2]), persisted(blocks[4]), *other]
    story += [persisted(blocks[4]), persisted(other[1]), back_to("origin"), persisted(1)]
    assert statuses(client.feed(story)) == [
        *["applied"] * 6,
        *("accepted", "rolled_back", "duplicate", "gap"),
        *["applied"] * 3,
        *("unknown_point", "accepted", "rolled_back", "gap"),
    ]
    assert height(client) is None


def test_blocks_below_the_rollback_floor(client: Client) -> None:
    """They are known by their hashes forever, whatever of their outputs is left."""
    kept = [block(None)]
    for n in range(1, 26):  # every fourth block pays nothing
        kept.append(block(kept[-1], *chain(1, branch=f"pays {n}")[0]["txs"]) if n % 4 else block(kept[-1]))
    client.feed(kept)
    assert client.hello()["rollback_floor"]["height"] > 10
    paid, empty = kept[6], kept[8]
    assert (len(paid["txs"]), len(empty["txs"])) == (1, 0)
    for stranger in (7, 9):
        error(client.ask(persisted(stranger, hash=digest("another"))), "unknown_point")
    story = [persisted(paid), persisted(empty), persisted(paid), persisted(10)]
    assert statuses(client.feed(story)) == ["accepted", "accepted", "duplicate", "accepted"]


def test_far_below_the_networks_tip(client: Client) -> None:
    """No rollback reaches them, and a persister that follows a few blocks behind is believed all the same."""
    blocks = chain(60)
    client.hello(**FAR)
    story: list[Message] = []
    for n, each in enumerate(blocks):
        story += [each] if n < 6 else [each, persisted(blocks[n - 6])]
    assert set(statuses(client.feed(story))) == {"applied", "accepted"}
    welcome = client.hello()
    assert (welcome["persisted_height"], welcome["rollback_floor"]) == (54, point(blocks[59]))
    story = [persisted(blocks[55]), persisted(30, hash=digest("another")), persisted(61)]
    assert statuses(client.feed(story)) == ["accepted", "unknown_point", "gap"]
