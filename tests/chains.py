"""Chains for tests on a real store. All is made from names: `tx("pay", ...)`, its first outpoint is `at("pay")`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypedDict, Unpack

import msgspec
import numpy as np
import pytest
from model import Model

from handlers.addresses import codec
from handlers.chain import Chain
from handlers.events import BlockApplied, GenesisOutput, GenesisOutputs, OutPoint, Output, Rollback, RollbackPoint, Tx
from handlers.leaves import LeafWriter
from handlers.query import Query
from handlers.refusal import Refusal, Refused
from handlers.rendering import OutputRenderer
from storage.change_log import TABLES as LOG_TABLES
from storage.disk import GIB, META, Disk
from storage.history.layout import TABLES as HISTORY_TABLES
from storage.history.layout import Flags, Found, Numbers, TxFound, to_extra, to_tx
from storage.history.output_keys import RULES
from storage.history.store import HistoryStore
from storage.history.stored import Home, Stored
from storage.indexes import NAMES
from storage.rows import Body
from storage.windows import Windows

TABLES = (META, *HISTORY_TABLES, *LOG_TABLES)
INDEXES = tuple(name for name in NAMES if name != "history")  # with that one nothing is forgotten

# --- names ---------------------------------------------------------------------------------------------------------


def digest(name: str, size: int = 32) -> bytes:
    return blake2b(name.encode(), digest_size=size).digest()


def txid(name: str) -> bytes:
    return digest(f"tx {name}")


def at(name: str, index: int = 0) -> OutPoint:
    return txid(name), index


def credential(name: str) -> bytes:
    return digest(f"credential {name}", 28)


# --- addresses -----------------------------------------------------------------------------------------------------


def address(kind: int, payment: str, stake: str = "") -> bytes:
    """Return a Cardano mainnet address: kinds 0 to 3 have a stake credential, 6 and 7 have none."""
    return bytes((kind << 4 | 1,)) + credential(payment) + (credential(stake) if kind < 4 else b"")


def wallet(name: str) -> bytes:
    return address(6, name)


def byron(name: str) -> bytes:
    root, path = digest(f"root {name}", 28), digest(f"path {name}", 28)
    parts = [bytes.fromhex("82d818584283581c"), root, bytes.fromhex("a101581e581c"), path, bytes.fromhex("001a")]
    return b"".join(parts) + digest(name, 4)


def script(name: str) -> bytes:
    return bytes.fromhex("76a914") + digest(f"script {name}", 20) + bytes.fromhex("88ac")


ADDRESSES = [
    wallet("ann"),
    wallet("bob"),
    address(7, "script"),
    address(0, "ann", "pool"),
    address(2, "bob", "pool"),
    address(0, "cid", "ann"),
    address(3, "script", "bob") + b"trailing bytes",
    address(4, "ann") + bytes(40),  # a pointer, written at length
    byron("dan"),
    script("eve"),
]

# --- transactions and blocks ---------------------------------------------------------------------------------------


def output(to: bytes | str, value: int = 1, **parts: Any) -> Output:
    return Output(wallet(to) if isinstance(to, str) else to, value, **parts)


def tx(name: str, *outputs: Output, spends: Sequence[OutPoint] = (), **parts: Any) -> Tx:
    return Tx(txid(name), list(spends), list(outputs), **parts)


def failed(name: str, *outputs: Output, collateral: Sequence[OutPoint], back: Output | None = None, **parts: Any) -> Tx:
    return tx(name, *outputs, valid=False, collateral=list(collateral), collateral_return=back, **parts)


def block(parent: BlockApplied | None, *txs: Tx, slot: int | None = None, salt: str = "", **parts: Any) -> BlockApplied:
    """Return the block after `parent`, twenty slots later unless told. Its hash is made from all of that."""
    height = parent.height + 1 if parent else 1
    slot = (parent.point.slot if parent else 0) + 20 if slot is None else slot
    before = parent.hash if parent else bytes(32)
    fields: dict[str, Any] = {"height": height, "slot": slot, "prev_hash": before, "txs": list(txs)} | parts
    content = {name: part for name, part in fields.items() if name != "seq"}
    made = blake2b(salt.encode() + msgspec.msgpack.encode(content), digest_size=32).digest()
    return BlockApplied(**({"hash": made} | fields))


def boundary(parent: BlockApplied) -> BlockApplied:
    """Return an epoch boundary block: it repeats its parent's height and has no transactions."""
    return block(parent, height=parent.height, slot=parent.point.slot + 1, salt="boundary")


def chained(*parts: Sequence[Tx]) -> list[BlockApplied]:
    blocks: list[BlockApplied] = []
    for txs in parts:
        blocks.append(block(blocks[-1] if blocks else None, *txs))
    return blocks


def genesis(**funds: int) -> GenesisOutputs:
    return GenesisOutputs(
        outputs=[GenesisOutput(txid(f"genesis {name}"), 0, output(name, value)) for name, value in funds.items()]
    )


def back_to(place: BlockApplied | int | str) -> Rollback:
    """Return the way back to a block (by hash), to a slot, or to the origin."""
    if isinstance(place, str):
        return Rollback(to="origin")
    return Rollback(to=RollbackPoint(slot=place) if isinstance(place, int) else RollbackPoint(hash=place.hash))


# --- random chains -------------------------------------------------------------------------------------------------


class Branches:
    """How often something happened, so that a random test can say what it met."""

    def __init__(self) -> None:
        self.met: dict[str, int] = {}

    def meet(self, what: str, happened: object = True) -> None:
        if happened:
            self.met[what] = self.met.get(what, 0) + 1


def phrases(text: str) -> set[str]:
    return set(text.split("; "))


def random_output(rng: Random, branches: Branches) -> Output:
    to, value = rng.choice(ADDRESSES), rng.randrange(1 << rng.choice((4, 33, 64)))
    kind = rng.random()
    if kind < 0.06:
        branches.meet("an unspendable output")
        return Output(b"\x6a" + bytes(rng.randrange(3)), 0, spendable=False)
    if kind < 0.25:
        branches.meet("an output with assets")
        assets = [
            (credential(f"policy {rng.randrange(3)}"), bytes(rng.randrange(3)), rng.randrange(1, 9))
            for _ in range(rng.randrange(1, 4))
        ]
        return Output(to, value, assets, inline_datum=bytes(rng.randrange(40)) if rng.random() < 0.3 else None)
    if kind < 0.32:
        return Output(to, value, [], digest("datum"), None, bytes(rng.randrange(300)), credential("reference"))
    return Output(to, value)


def random_block(
    rng: Random,
    parent: BlockApplied | None,
    live: Sequence[OutPoint],
    used: Sequence[bytes],
    branches: Branches,
    *,
    repeats: bool = True,
) -> BlockApplied:
    """Return any block after `parent`, where `live` can be spent and `used` are the ids of earlier transactions.

    Its transactions spend what is live and what the block itself created, spend twice, spend what is not there, fail,
    and, where it `repeats`, take the id of another.
    """
    if parent is not None and rng.random() < 0.05:
        branches.meet("a boundary block")
        return boundary(parent)
    here, own, txs = list(live), set[OutPoint](), list[Tx]()

    def take(most: int) -> list[OutPoint]:
        taken = [here.pop(rng.randrange(len(here))) for _ in range(rng.randrange(most + 1)) if here]
        branches.meet("an in-block spend", own.intersection(taken))
        if taken and rng.random() < 0.1:
            branches.meet("an input listed twice")
            taken.insert(rng.randrange(len(taken) + 1), rng.choice(taken))
        if rng.random() < 0.06:
            branches.meet("a missing input")
            missing = rng.randrange(3)
            taken.append((rng.choice(used) if used and missing else rng.randbytes(32), rng.randrange(7, 9)))
        return taken

    for _ in range(rng.randrange(5)):
        again = [tx.txid for tx in txs] + list(used)
        name = rng.randbytes(32)
        if again and repeats and rng.random() < 0.06:
            name = rng.choice(again)
            branches.meet("a txid again in its own block" if name in {tx.txid for tx in txs} else "a txid again")
        outputs = [random_output(rng, branches) for _ in range(rng.randrange(4))]
        datums = {0: [b"datum"], 1: [b"datum", name, b""], 2: [name]}.get(name[0] % 8, [])  # see `random_output`
        branches.meet("datums among the witnesses", datums)
        if rng.random() < 0.15:
            branches.meet("a failed transaction")
            made = random_output(rng, branches) if rng.random() < 0.6 else None
            given = made is not None and made.spendable
            branches.meet("a collateral return", given)
            branches.meet("an unspendable collateral return", made is not None and not given)
            some = rng.sample(here, min(len(here), 2))
            spend = Tx(name, some, outputs, False, take(2), [], made, coinbase=name in again, datums=datums)
            born = [(name, len(outputs))] if given else []
        else:
            some, first = rng.sample(here, min(len(here), 1)), not txs or name in again  # only a coinbase can repeat
            spent = take(3)
            back = random_output(rng, branches)
            spend = Tx(name, spent, outputs, True, some, some, back, coinbase=first, datums=datums)
            born = [(name, index) for index, each in enumerate(outputs) if each.spendable]
        txs.append(spend)
        here = [point for point in here if point[0] != name] + born
        own.update(born)
    slot = None if parent is None else parent.point.slot + rng.choice((0, 1, 20, 1000))
    return block(parent, *txs, slot=slot, salt=str(rng.random()), time=rng.choice((None, 1_757_500_000)))


def random_chain(
    rng: Random, length: int, *, after: Sequence[BlockApplied] = (), repeats: bool = True
) -> list[BlockApplied]:
    model, chain = Model(), list(after)
    for each in chain:
        model.apply(each)
    for _ in range(length):
        parent, live = chain[-1] if chain else None, list(model.now.coins)
        chain.append(random_block(rng, parent, live, model.used(), Branches(), repeats=repeats))
        model.apply(chain[-1])
    return chain[len(after) :]


def random_genesis(rng: Random) -> GenesisOutputs:
    return GenesisOutputs(
        outputs=[
            GenesisOutput(
                txid(f"genesis {n // 2}"),
                n % 2,
                Output(rng.choice(ADDRESSES), rng.randrange(1 << 33), spendable=rng.random() < 0.9),
            )
            for n in range(rng.randrange(1, 6))
        ]
    )


# --- a store under them --------------------------------------------------------------------------------------------


CODEC = codec("cardano", "mainnet")
LEAVES = LeafWriter(OutputRenderer(CODEC, "cardano"))  # of a store with an MMR


class Options(TypedDict, total=False):
    indexes: Sequence[str]
    prune_depth: int
    rollback_window: int
    prune_batch_size: int
    may_prune: bool
    map_size: int
    max_map_size: int
    durable: bool
    chain: str
    store: str


@contextmanager
def open_chain(folder: Path, **options: Unpack[Options]) -> Iterator[Chain]:
    """Open the store in `folder` with every index, windows of ten blocks, and pruning off unless told."""
    with Disk(
        folder,
        TABLES,
        map_size=options.get("map_size", GIB),
        max_map_size=options.get("max_map_size", 2 * GIB),
        durable=options.get("durable", False),
    ) as disk:
        store = HistoryStore(disk, LEAVES)
        store.open(
            options.get("chain", "cardano/mainnet"), options.get("indexes", INDEXES), options.get("store", "classic")
        )
        windows = Windows(options.get("prune_depth", 10), options.get("rollback_window", 10))
        chain = Chain(store, windows, options.get("prune_batch_size", 1000))
        chain.may_prune = options.get("may_prune", False)
        yield chain


def query_of(chain: Chain, room: int = 20_000) -> Query:
    return Query(chain.store, CODEC, "cardano", room)


def feed(chain: Chain, *blocks: BlockApplied, network_height: int | None = None) -> None:
    for each in blocks:
        assert chain.apply(each, network_height)
    chain.commit()


def prune_all(chain: Chain) -> None:
    allowed, chain.may_prune = chain.may_prune, True
    while chain.due_for_pruning():
        before = chain.state
        moved = chain.prune() or chain.state != before
        assert moved or not chain.due_for_pruning(), "a step that gets nowhere is not due again"
    chain.may_prune = allowed


def refused(code: str, act: Callable[[], object]) -> Refusal:
    with pytest.raises(Refused) as why:
        act()
    refusal = why.value.refusal
    assert refusal.code == code, refusal.message
    return refusal


# --- reading it ----------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """An output that lives or may live again: what it holds, the ordinal of its block, and who spent it."""

    body: Body
    block: int
    spender: bytes | None


def dump(store: HistoryStore) -> dict[str, Any]:
    """Return every answer of a store, and the bytes of the tables that are not the chain's.

    How values are cut, and which runs there are, is left out: merges and rewrites change it and no answer.
    """
    with store.disk.read() as txn:
        stored, state = store.stored(txn), store.state(txn)
        points = _points(stored, stored.revivable)
        kept = _outputs(stored, points)
        answers: dict[str, Any] = {
            "state": (state.tip, state.unspent, state.floor, state.next_number, state.persisted),
            "blocks": {n: stored.block(n) for n in range(0 if store.genesis(txn) else 1, state.tip + 1)},
            "outputs": kept,
            "transactions": [tx for tx in _transactions(stored) if stored.is_kept(tx)],
            "undo": {
                n: [
                    ((points[one.number].txid, points[one.number].output), one.spender, one.input)
                    for one in stored.undo(n) or []
                ]
                for n in range(state.floor + 1, state.tip + 1)
            },
            "mmr": store.mmr and store.mmr.roots(txn),
        }
        for index in set(store.kept_indexes(txn)) - {"history"}:
            keys = {key for output in kept.values() for key in index_keys(index, output.body)}
            answers[index] = {key: listed for key in keys if (listed := _found(stored, index, key))}
        for name, db in store.disk.tables.items():
            if name not in {"change_log", META} and not name.startswith("history_"):
                rows: dict[bytes, bytes] = {}
                for key, value in txn.cursor(db):
                    rows[key] = rows.get(key, b"") + value
                answers[name] = rows
        return answers


def rows(store: HistoryStore, table: str) -> dict[bytes, bytes]:
    with store.disk.read() as txn:
        return dict(txn.cursor(store.disk.tables[table]))


def everything(store: HistoryStore) -> dict[str, dict[bytes, bytes]]:
    return {name: rows(store, name) for name in store.disk.tables}


def outputs(store: HistoryStore) -> dict[OutPoint, Kept]:
    with store.disk.read() as txn:
        stored = store.stored(txn)
        return _outputs(stored, _points(stored, stored.revivable))


def unspent(store: HistoryStore) -> dict[OutPoint, Body]:
    """Return the unspent outputs, in the order of the chain."""
    with store.disk.read() as txn:
        stored = store.stored(txn)
        return {point: kept.body for point, kept in _outputs(stored, _points(stored, stored.live.has)).items()}


def live(store: HistoryStore) -> dict[OutPoint, tuple[bytes, int]]:
    return {point: (body.address, body.value) for point, body in unspent(store).items()}


def found(store: HistoryStore, index: str, key: bytes) -> list[OutPoint]:
    with store.disk.read() as txn:
        return _found(store.stored(txn), index, key) if index in store.kept_indexes(txn) else []


def index_keys(index: str, body: Body) -> set[bytes]:
    extra = msgspec.msgpack.encode(msgspec.structs.astuple(body)[2:])
    return RULES[index].keys(body.address, extra)


def _points(stored: Stored, which: Callable[[Numbers], Flags]) -> dict[int, Home]:
    numbers = np.arange(stored.state.next_number)
    return stored.homes(numbers[which(numbers)])


def _outputs(stored: Stored, homes: dict[int, Home]) -> dict[OutPoint, Kept]:
    """Return outputs with what they hold; of two with one id it is the latest."""
    kept = dict[OutPoint, Kept]()
    for number, home in homes.items():
        output = stored.output(number)
        assert output is not None
        by = None if stored.live.is_set(number) else stored.spender(number)
        kept[home.txid, home.output] = Kept(to_body(output), home.block, by and by.txid)
    return kept


def to_body(output: Found) -> Body:
    return to_extra(output.extra).body(output.address, output.value)


def _transactions(stored: Stored) -> Iterator[TxFound]:
    start = 0
    while (part := stored.txs.parts(start)) is not None:
        yield from map(to_tx, part[0])
        start = int(part[0]["number"][-1]) + 1


def _found(stored: Stored, index: str, key: bytes) -> list[OutPoint]:
    prefix = stored.prefix(key)
    up = [n for some in stored.index(index).ascending(prefix) for n in some.tolist()]
    down = [n for some in stored.index(index).descending(prefix) for n in some.tolist()]
    assert up == down[::-1] == sorted(set(up))
    points = []
    for number in up:
        output = stored.output(number) if stored.live.is_set(number) else None
        if output is not None and key in RULES[index].keys(output.address, output.extra):
            home = stored.homes(np.array([number]))[number]
            points.append((home.txid, home.output))
    return points
