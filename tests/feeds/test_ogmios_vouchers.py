"""The vouchers' end on a chain that is followed: the same as in a database, wherever one begins, whatever happens."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from ogmios_messages import carried
from ogmios_server import Chain, OgmiosServer, chain_from, chain_of, serving
from test_cardano_avvm import BLOCKS, CHAIN, GENESIS
from test_cardano_made_blocks import KEY_ADDRESS
from test_ogmios_chain import back_to, follow, tips_after, welcome

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import MAINNET
from handlers.events import BlockApplied, GenesisOutputs, Inbound, OutPoint, Output

SEED = GenesisOutputs(outputs=GENESIS)
FIRST_OF_ALLEGRA = 5
LAST = BLOCKS[-1].height


@pytest.fixture
def expected(tmp_path: Path) -> list[BlockApplied]:
    """Return the blocks as chunk files give them, without what messages cannot carry."""
    (tmp_path / "00000.chunk").write_bytes(b"".join(CHAIN))
    return [carried(block) for block in read_chain(tmp_path, MAINNET, genesis=GENESIS)]


def after(server: OgmiosServer, known: int, **more: object) -> list[Inbound]:
    messages = follow(server.url, welcome(server.chain[:known]), to_height=LAST, genesis=SEED, **more)  # type: ignore[arg-type]
    return [carried(message) if isinstance(message, BlockApplied) else message for message in messages]


def test_vouchers_end_as_in_a_database(expected: list[BlockApplied]) -> None:
    with serving(chain_from(BLOCKS)) as server:
        first, *messages = follow(server.url, to_height=LAST, genesis=SEED)
        assert server.connections == 1
    assert first == SEED
    assert [carried(each) for each in messages if isinstance(each, BlockApplied)] == expected
    assert len(expected[FIRST_OF_ALLEGRA].txs) == 2


@pytest.mark.parametrize("known", range(1, len(BLOCKS)))
def test_any_first_block_gives_the_same_blocks(known: int, expected: list[BlockApplied]) -> None:
    notices: list[str] = []
    with serving(chain_from(BLOCKS)) as server:
        assert after(server, known, notices=notices) == expected[known:]
        read_again = sum("again to find the vouchers" in line for line in notices)
        assert read_again == (known <= FIRST_OF_ALLEGRA)
        assert (["origin"] in server.requests) == bool(read_again)


def test_a_single_point_before_allegra_is_verified(expected: list[BlockApplied]) -> None:
    for known in (FIRST_OF_ALLEGRA, FIRST_OF_ALLEGRA + 1):
        with serving(chain_from(BLOCKS)) as server:
            at = welcome(server.chain[known - 1 : known], floor=True)
            messages = follow(server.url, at, to_height=LAST, genesis=SEED)
            assert [carried(each) for each in messages if isinstance(each, BlockApplied)] == expected[known:]
            assert server.requests[-1] == ["origin"]


def other_branch(chain: Chain) -> Chain:
    """Return a branch from the last block of Shelley on, in which another voucher is redeemed."""
    redeemed = replace(
        BLOCKS[3].txs[0], txid=b"\x77" * 32, inputs=[GENESIS_POINTS[3]], outputs=[Output(KEY_ADDRESS, 9)]
    )
    blocks: list[BlockApplied] = []
    for block, txs in zip(BLOCKS[4:], ([redeemed], [], []), strict=True):
        before = blocks[-1].hash if blocks else block.prev_hash
        blocks.append(replace(block, hash=bytes([0x70 + len(blocks)]) * 32, prev_hash=before, txs=txs))
    more = chain_from(blocks)
    return chain[:4] + chain_of([entry.block for entry in more], after=chain[3])


GENESIS_POINTS = [(each.txid, each.index) for each in GENESIS]


def ends(messages: list[Inbound]) -> list[set[OutPoint]]:
    blocks = [each for each in messages if isinstance(each, BlockApplied) and each.height == FIRST_OF_ALLEGRA]
    return [set(block.txs[0].inputs) for block in blocks]


def test_rollbacks_over_the_boundary() -> None:
    chain = chain_from(BLOCKS)
    with serving(chain) as server:
        other = other_branch(chain)
        server.on_answer = lambda n: server.switch(other if n == 8 else chain) if n in (8, 12) else None
        messages = follow(server.url, most=16, genesis=SEED)
        assert server.connections == 1
    first, second, third = ends(messages)
    assert first == third
    assert first - second == {GENESIS_POINTS[3]} and not second - first
    assert messages[8] == messages[12] == back_to(chain[3])


@pytest.mark.parametrize("known", [FIRST_OF_ALLEGRA + 1, FIRST_OF_ALLEGRA + 2])
def test_a_feed_that_began_after_the_boundary_rolls_back_over_it(known: int) -> None:
    chain = chain_from(BLOCKS)
    with serving(chain) as server:
        server.switch(other_branch(chain))
        (end,) = ends(follow_from(server, chain[:known]))
        server.switch(chain)
        (start,) = ends(follow_from(server, other_branch(chain)[:known]))
    assert start - end == {GENESIS_POINTS[3]}


def follow_from(server: OgmiosServer, known: Chain) -> list[Inbound]:
    return follow(server.url, welcome(known), to_height=LAST, genesis=SEED)


def test_a_chain_that_changes_while_it_is_read_again() -> None:
    chain = chain_from(BLOCKS)
    with serving(chain) as server:
        other = other_branch(chain)

        def trouble(_: int) -> None:
            if server.connections == 3:  # the second is for the era of the tip, the third reads from the beginning
                server.switch(other)

        server.on_answer = trouble
        messages = after(server, FIRST_OF_ALLEGRA)
        assert server.connections > 4
        assert messages[0] == back_to(chain[3])
        assert tips_after(messages, chain[:FIRST_OF_ALLEGRA]) == [bytes.fromhex(entry.id) for entry in other]
        (end,) = ends(messages)
    assert end and GENESIS_POINTS[3] not in end


def test_without_genesis_only_what_transactions_made_is_known() -> None:
    with serving(chain_from(BLOCKS)) as server:
        (end,) = ends(follow(server.url, to_height=LAST))
    assert end and not end & set(GENESIS_POINTS)
