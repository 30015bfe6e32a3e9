"""At the first block of Allegra the live outputs at redeem addresses go, and nothing else does."""

from pathlib import Path

import pytest
from plain_set import PlainSet
from test_cardano_made_blocks import BYRON_ADDRESS, KEY_ADDRESS, NO_HASH, body, byron_block, byron_tx, decode
from test_cardano_made_blocks import shelley_block as made_shelley

from feeds.cardano.addresses import MAINNET_MAGIC, is_redeem, redeem_address
from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import ALLEGRA, ALONZO, MAINNET, MARY, PREVIEW, SHELLEY
from handlers.events import BlockApplied, GenesisOutput, OutPoint, Output, Tx

VOUCHERS = [redeem_address(bytes([n]) * 32, MAINNET_MAGIC) for n in range(4)]
GENESIS = [
    *(GenesisOutput(bytes([0xA0 + n]) * 32, 0, Output(address, 100 + n)) for n, address in enumerate(VOUCHERS)),
    GenesisOutput(b"\xb0" * 32, 0, Output(BYRON_ADDRESS, 50)),
]
BYRON_SLOTS = 4_492_800


def genesis_point(n: int) -> OutPoint:
    return bytes([0xA0 + n]) * 32, 0


def shelley_tx(points: list[OutPoint], outputs: list[tuple[bytes, int]]) -> tuple[dict[int, object], object, object]:
    return body(f0=[list(point) for point in points], f1=[list(output) for output in outputs]), {}, None


def made_chain() -> list[bytes]:
    """Redeem voucher 0 in Byron and 1 in Shelley; pay to vouchers in both eras, and spend one of these payments."""
    first = byron_tx([genesis_point(0)], [Output(BYRON_ADDRESS, 99), Output(VOUCHERS[0], 1)])
    second = byron_tx([(b"\xee" * 32, 1)], [Output(VOUCHERS[1], 2), Output(VOUCHERS[1], 3)])
    chain = [byron_block([], height=0, slot=0, previous=NO_HASH)]
    chain.append(byron_block([first], height=1, slot=1, previous=decode(chain[-1]).hash))
    chain.append(byron_block([second], height=2, slot=2, previous=decode(chain[-1]).hash))
    paid = decode(chain[-1]).txs[0].txid
    third = shelley_tx([genesis_point(1), (paid, 0)], [(VOUCHERS[2], 4), (KEY_ADDRESS, 5)])
    fourth = shelley_tx([genesis_point(2)], [(KEY_ADDRESS, 102)])  # too late: it does not find its input
    for height, era, txs in ((3, SHELLEY, [third]), (4, SHELLEY, []), (5, ALLEGRA, [fourth]), (6, ALLEGRA, [])):
        previous = decode(chain[-1]).hash
        chain.append(made_shelley(txs, era=era, height=height, slot=BYRON_SLOTS + height, previous=previous))
    return chain


CHAIN = made_chain()
BLOCKS = [decode(raw) for raw in CHAIN]
RETURNED = {
    genesis_point(2),
    genesis_point(3),
    (BLOCKS[1].txs[0].txid, 1),
    (BLOCKS[2].txs[0].txid, 1),
    (BLOCKS[3].txs[0].txid, 0),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, blocks in enumerate((CHAIN[:2], CHAIN[2:4], CHAIN[4:])):
        (tmp_path / f"{number:05}.chunk").write_bytes(b"".join(blocks))
    return tmp_path


def read(folder: Path, **options: object) -> list[BlockApplied]:
    return list(read_chain(folder, MAINNET, genesis=GENESIS, **options))  # type: ignore[arg-type]


def returning(block: BlockApplied) -> Tx:
    """Return the synthetic transaction of the boundary's block."""
    first, *others = block.txs
    assert others == BLOCKS[5].txs
    return first


def test_unredeemed_vouchers_end_at_allegra(folder: Path) -> None:
    blocks, coins = read(folder), PlainSet(GENESIS)
    assert blocks[:5] + blocks[6:] == BLOCKS[:5] + BLOCKS[6:]
    end = returning(blocks[5])
    assert (set(end.inputs), end.outputs, end.valid) == (RETURNED, [], True)
    assert len(end.inputs) == len(RETURNED)
    missing = [point for block in blocks for tx in block.txs for point in coins.apply(tx)]
    assert missing == [(b"\xee" * 32, 1), genesis_point(2)]
    assert not [point for point, output in coins.coins.items() if is_redeem(output.address)]
    assert len({tx.txid for block in blocks for tx in block.txs}) == sum(len(block.txs) for block in blocks)


@pytest.mark.parametrize("known", range(len(BLOCKS)))
def test_any_first_block_gives_the_same_blocks(folder: Path, known: int) -> None:
    assert read(folder, after=[BLOCKS[known].point]) == read(folder)[known + 1 :]


def test_a_database_that_begins_in_shelley(folder: Path) -> None:
    for number in range(2):
        (folder / f"{number:05}.chunk").unlink()
    (end, *_) = read(folder)[1].txs
    assert set(end.inputs) == {genesis_point(n) for n in range(4)}


def test_a_database_that_begins_after_the_boundary(tmp_path: Path) -> None:
    raw = made_shelley(era=MARY, height=900, slot=BYRON_SLOTS + 900)
    (tmp_path / "00000.chunk").write_bytes(raw)
    assert read(tmp_path) == [decode(raw)]


def test_a_chain_that_begins_in_a_later_era(tmp_path: Path) -> None:
    first = made_shelley(era=ALONZO, height=0, slot=0, previous=None)
    second = made_shelley(era=ALONZO, height=1, slot=1, previous=decode(first).hash)
    (tmp_path / "00000.chunk").write_bytes(first + second)
    blocks = list(read_chain(tmp_path, PREVIEW, genesis=GENESIS))
    assert [set(tx.inputs) for block in blocks for tx in block.txs] == [{genesis_point(n) for n in range(4)}]
    assert len(blocks[0].txs) == 1
    assert list(read_chain(tmp_path, PREVIEW, genesis=GENESIS, after=[blocks[0].point])) == blocks[1:]


def test_without_vouchers_no_transaction_is_added(tmp_path: Path) -> None:
    raw = [made_shelley(era=era, height=era, slot=era, previous=None) for era in (SHELLEY, ALLEGRA)]
    (tmp_path / "00000.chunk").write_bytes(raw[0])
    (tmp_path / "00001.chunk").write_bytes(made_shelley(era=ALLEGRA, height=3, slot=3, previous=decode(raw[0]).hash))
    assert [block.txs for block in read_chain(tmp_path, MAINNET, genesis=GENESIS[4:])] == [[], []]
