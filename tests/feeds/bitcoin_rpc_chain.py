"""A node and a daemon in memory, each with a chain: fakes that share no code with the program."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from test_bitcoin_block import GENESIS, hash_of, made_block, made_coinbase, made_input, made_output, made_tx, twice

from feeds.bitcoin.access import Address, Login, NodeAway, RpcError
from feeds.bitcoin.http import Connection
from feeds.bitcoin.jsonrpc import Call, Flight, Node
from feeds.bitcoin.networks import REGTEST
from handlers.events import BlockApplied, ChainName, Hello, Inbound, Point, Rollback, Welcome

REGTEST_GENESIS = GENESIS[:68] + bytes.fromhex("dae5494dffff7f2002000000") + GENESIS[80:]
assert hash_of(REGTEST_GENESIS) == REGTEST.genesis


def txid_of(raw: bytes) -> str:
    """Return the id of a transaction without witness."""
    return twice(raw)[::-1].hex()


class Fault(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class FakeNode:
    """A node with a best chain. Each block pays one output and spends that of the block before."""

    def __init__(self, length: int = 0) -> None:
        self.blocks = {REGTEST.genesis.hex(): REGTEST_GENESIS}
        self.coinbases: dict[str, bytes] = {}
        self.changes: dict[str, tuple[list[str], list[str]]] = {}  # outpoints that go, lines of a set that come
        self.chain = [REGTEST.genesis.hex()]
        self.headers = 0  # above the blocks
        self.pool: dict[str, bytes] = {}
        self.calls: list[tuple[str, list[Any]]] = []
        self.lies: dict[str, Callable[[list[Any]], Any]] = {}
        self.waits: Callable[[], None] | None = None  # called by `waitfornewblock`, which is unknown without it
        self._made = 0
        self.mine(length)

    @property
    def height(self) -> int:
        return len(self.chain) - 1

    def raw(self, height: int) -> bytes:
        return self.blocks[self.chain[height]]

    def mine(self, count: int = 1, *others: bytes) -> None:
        """Mine blocks; transactions besides their own leave the mempool."""
        for _ in range(count):
            self._made += 1
            parent = self.chain[-1]
            coinbase = made_coinbase(self._made.to_bytes(4, "little"), [made_output(50, b"\x51")])
            txs, removed, come = [coinbase], [], [f"{txid_of(coinbase)},0,50,51"]
            if parent in self.coinbases:
                spent = txid_of(self.coinbases[parent])
                outputs = [made_output(self._made, b"\x52"), made_output(0, b"\x6a\x01")]
                txs.append(made_tx([made_input(bytes.fromhex(spent), 0)], outputs))
                removed, come = [f"{spent},0,"], [*come, f"{txid_of(txs[1])},0,{self._made},52"]
            txs += others
            for other in others:
                self.pool.pop(txid_of(other), None)
            raw = made_block(txs, parent=bytes.fromhex(parent))
            self.chain.append(hash_of(raw).hex())
            self.blocks[self.chain[-1]] = raw
            self.coinbases[self.chain[-1]] = coinbase
            self.changes[self.chain[-1]] = removed, come

    def coins(self) -> list[str]:
        lines: list[str] = []
        for removed, come in (self.changes[each] for each in self.chain[1:]):
            lines = [line for line in lines if not any(line.startswith(each) for each in removed)] + come
        return lines

    def drop_last(self, depth: int) -> list[str]:
        """Go back by some blocks, but never the first; return them."""
        keep = max(len(self.chain) - depth, 1)
        removed = self.chain[keep:]
        del self.chain[keep:]
        return removed

    def reorganise(self, depth: int, length: int) -> None:
        self.drop_last(depth)
        self.mine(length)

    def answer(self, method: str, parameters: Sequence[Any]) -> Any:
        requests = list(parameters)
        self.calls.append((method, requests))
        if method in self.lies:
            return self.lies[method](requests)
        return self.truth(method, requests)

    def truth(self, method: str, requests: list[Any]) -> Any:
        match method, requests:
            case "getbestblockhash", []:
                return self.chain[-1]
            case "getblockchaininfo", []:
                return {"chain": "regtest", "blocks": self.height, "headers": self.height + self.headers}
            case "getblockhash", [int(height)]:
                if not 0 <= height <= self.height:
                    raise Fault(-8, "Block height out of range")
                return self.chain[height]
            case "getblockheader", [str(block_hash), *plain]:
                if block_hash not in self.blocks:
                    raise Fault(-5, "Block not found")
                return self.blocks[block_hash][:80].hex() if plain else {"hash": block_hash, "confirmations": -1}
            case "getblock", [str(block_hash), 0]:
                if block_hash not in self.blocks:
                    raise Fault(-5, "Block not found")
                return self.blocks[block_hash].hex()
            case "getrawmempool", []:
                return list(self.pool)
            case "getrawtransaction", [str(txid), 0]:
                if txid not in self.pool:
                    raise Fault(-5, "No such mempool transaction")
                return self.pool[txid].hex()
            case "waitfornewblock", [int()] if self.waits is not None:
                self.waits()
                return {"hash": self.chain[-1], "height": self.height}
        raise Fault(-32601, "Method not found")


class Inside(Node):
    """A client of a fake node: no socket, and a hook before every request."""

    def __init__(self, fake: FakeNode, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(Address("inside", 1, "/", False), Login(), longest=1 << 20)
        self.name = "inside"
        self.fake = fake
        self.before = before

    async def begin(self, *calls: Call) -> Flight:
        if calls[0][0] != "waitfornewblock":
            self.before()
        results: list[Any] = []
        for method, *parameters in calls:
            try:
                results.append(self.fake.answer(str(method), parameters))
            except Fault as fault:
                results.append(RpcError(f"inside refuses {method}: {fault} ({fault.code})", fault.code))
        self.answers += 1
        return _Landed(self, results)

    async def dispatch(self, body: bytes, *, fresh: bool = False) -> Connection:
        raise AssertionError


class _Landed(Flight):
    def __init__(self, node: Node, results: list[Any]) -> None:
        self._results = results

    async def results(self) -> list[Any]:
        return self._results

    def drop(self) -> None:
        pass


class Ledger:
    """A daemon's chain: it accepts blocks that follow, and rollbacks to points that it has."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.blocks: list[BlockApplied] = []
        self.rollbacks: list[int] = []
        self.others: list[Inbound] = []

    @property
    def chain(self) -> list[str]:
        return [point.hash.hex() for point in self.points]

    def hear(self, message: Inbound) -> None:
        match message:
            case BlockApplied():
                before = self.points[-1] if self.points else None
                assert message.prev_hash == (before.hash if before else None)
                assert message.height == (before.height + 1 if before else 0)
                self.points.append(message.point)
                self.blocks.append(message)
            case Rollback(to=to):
                assert not isinstance(to, str) and to.hash is not None
                place = [point.hash for point in self.points].index(to.hash)
                assert to.height == place < len(self.points) - 1, "a rollback that takes nothing back"
                self.rollbacks.append(len(self.points) - 1 - place)
                del self.points[place + 1 :]
            case _:
                self.others.append(message)

    async def hear_all(self, messages: AsyncIterator[Inbound]) -> None:
        async for message in messages:
            self.hear(message)

    def welcome(self, floor: int = 0) -> Welcome:
        """Return the daemon's answer to a feeder; its points thin out from the tip to the floor."""
        last, steps = len(self.points) - 1, [0]
        while last - steps[-1] * 2 > floor and steps[-1] * 2 < last:
            steps.append(max(steps[-1] * 2, 1))
        kept = {last - step for step in steps} | {floor}
        points = [self.points[place] for place in sorted(kept, reverse=True) if 0 <= place <= last]
        return Welcome(
            protocol=1,
            version="0",
            chain=ChainName("bitcoin", "regtest"),
            tip=points[0] if points else None,
            points=points,
            rollback_floor=None,
            persisted_height=None,
        )

    def received(self, kind: type[Inbound]) -> list[Any]:
        return [message for message in self.others if isinstance(message, kind)]

    def network_tips(self) -> list[int]:
        return [hello.network_tip.height for hello in self.received(Hello) if hello.network_tip is not None]


class Scenario:
    """Events in order, each before a request; `Over` ends a feed."""

    class Over(Exception):
        """No event is left."""

    def __init__(self, *events: tuple[int, Callable[[], object]]) -> None:
        """Events are given with the number of requests that pass before each."""
        self.events = deque(events)
        self._passed = 0

    def next(self) -> None:
        self._passed += 1
        while self.events and self._passed > self.events[0][0]:
            self._passed = 0
            self.events.popleft()[1]()


def go_away() -> None:
    raise NodeAway("inside is away")
