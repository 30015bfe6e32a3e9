"""Blocks in Esplora's format, from their headers."""

from __future__ import annotations

from collections import OrderedDict
from statistics import median_high

from daemon.wallets.backend import Backend
from daemon.wallets.errors import RpcFault
from daemon.wallets.esplora.transactions import Json
from daemon.wallets.headers import header_of, ordinal_at
from handlers.query import Snapshot

PAGE = 10
_MEDIAN_OF = 11
_HIGHEST_TARGET = 0xFFFF << 208
_KEPT = 10_000  # weights that are remembered


class Blocks:
    """Answers questions about blocks."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._weights = OrderedDict[bytes, int]()

    async def page(self, start: int | None) -> list[Json]:
        """Return blocks from a height, or the tip, downwards."""
        with self._backend.chain.snapshot() as shot:
            tip = shot.tip()
            if tip is None:
                return []
            first = shot.state.tip if start is None else ordinal_at(shot, start)
            found = [self._facts(shot, ordinal) for ordinal in range(first, max(first - PAGE, 0), -1)]
        for each in found:
            await self._add_weight(each)
        return found

    async def block(self, block_hash: bytes) -> Json | None:
        """Return a block, None if it is not in the chain."""
        with self._backend.chain.snapshot() as shot:
            ordinal = shot.ordinal_of(block_hash)
            if not ordinal:
                return None
            found = self._facts(shot, ordinal)
        await self._add_weight(found)
        return found

    def status(self, block_hash: bytes) -> Json:
        """Return whether a block is in the chain, and what follows it."""
        with self._backend.chain.snapshot() as shot:
            ordinal = shot.ordinal_of(block_hash)
            if not ordinal:
                return {"in_best_chain": False}
            following = shot.block(ordinal + 1).hash.hex() if ordinal < shot.state.tip else None
            return {"in_best_chain": True, "height": shot.block(ordinal).height, "next_best": following}

    def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a block of the chain."""
        with self._backend.chain.snapshot() as shot:
            ordinal = shot.ordinal_of(block_hash)
            return shot.block(ordinal).height if ordinal else None

    def hash_at(self, height: int) -> bytes:
        """Return the hash of the block of a height.

        Raises:
            RpcFault: there is none.
        """
        with self._backend.chain.snapshot() as shot:
            return shot.block(ordinal_at(shot, height)).hash

    def _facts(self, shot: Snapshot, ordinal: int) -> Json:
        block, header = shot.stored.block(ordinal), header_of(shot, ordinal)
        bits = int.from_bytes(header[72:76], "little")
        earlier = range(max(ordinal - _MEDIAN_OF + 1, 1), ordinal + 1)
        previous = header[4:36][::-1]
        return {
            "id": block.hash.hex(),
            "height": block.height,
            "version": int.from_bytes(header[:4], "little", signed=True),
            "timestamp": int.from_bytes(header[68:72], "little"),
            "tx_count": block.txs,
            "size": block.size,
            "weight": None,
            "merkle_root": header[36:68][::-1].hex(),
            "previousblockhash": previous.hex() if any(previous) else None,
            "mediantime": median_high([int.from_bytes(header_of(shot, each)[68:72], "little") for each in earlier]),
            "nonce": int.from_bytes(header[76:80], "little"),
            "bits": bits,
            "difficulty": _difficulty(bits),
        }

    async def _add_weight(self, facts: Json) -> None:
        """Add the fields that only the node has; they stay null while the node does not answer."""
        key = bytes.fromhex(facts["id"])
        if key not in self._weights:
            try:
                answer = await self._backend.upstream.call("getblock", facts["id"], 1)
            except RpcFault:
                return
            weight = answer.get("weight") if isinstance(answer, dict) else None
            if not isinstance(weight, int):
                return
            self._weights[key] = weight
            if len(self._weights) > _KEPT:
                self._weights.popitem(last=False)
        facts["weight"] = self._weights[key]


def _difficulty(bits: int) -> float:
    """Return how much harder a target is than the easiest one of the main network."""
    exponent, mantissa = bits >> 24, bits & 0x7FFFFF
    target = mantissa << 8 * (exponent - 3) if exponent > 3 else mantissa >> 8 * (3 - exponent)
    return _HIGHEST_TARGET / target if target else 0.0
