"""The words of the conformance cases: letters are transactions, `"A:1"` is an output, `"C:0"` a spender."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from handlers.bodies import body
from handlers.events import OutPoint, Output, Tx
from storage.pool_layout import FROZEN, HASH, claim, output_hash

Op = dict[str, Any]
PLACEHOLDER = b"\xff" * HASH  # of a coinbase, and the spender of what is frozen


def digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=HASH).digest()


def split(out: str) -> tuple[str, int]:
    name, _, number = out.rpartition(":")
    return name, int(number)


class Words:
    """What the cases' letters mean, and which transactions they have made."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {PLACEHOLDER: "FROZEN"}
        self.made: dict[str, Tx] = {}
        self.new_hashes: dict[tuple[OutPoint, str], bytes] = {}  # of reassigned outputs, by the word for the new owner
        self.owners: dict[bytes, str] = {}  # of locks

    def txid(self, name: str) -> bytes:
        txid = PLACEHOLDER if name in ("COINBASE_PLACEHOLDER", "FROZEN") else digest(f"tx {name}")
        self.names.setdefault(txid, name)
        return txid

    def name(self, txid: bytes) -> str:
        return self.names.get(txid, txid.hex())

    def outpoint(self, out: str) -> OutPoint:
        name, index = split(out)
        return self.txid(name), index

    def outpoints(self, ins: str | list[str]) -> list[OutPoint]:
        if isinstance(ins, str):  # "all of A"
            name = ins.split()[-1]
            return [(self.txid(name), n) for n, output in enumerate(self.made[name].outputs) if output.spendable]
        return [self.outpoint(out) for out in ins]

    def out(self, outpoint: OutPoint) -> str:
        return f"{self.name(outpoint[0])}:{outpoint[1]}"

    def by(self, spender: str) -> bytes:
        return FROZEN if spender == "FROZEN" else claim(*self.outpoint(spender))

    def hash(self, outpoint: OutPoint, named: str | None = None) -> bytes | None:
        """Return the hash that a case means: by itself, that of the output's first owner."""
        if named is not None and named not in ("old", "original", "right", "correct"):
            return self.new_hashes.get((outpoint, named), digest(f"hash {named}"))
        made = self.made.get(self.name(outpoint[0]))
        if made is None or outpoint[1] >= len(made.outputs):
            return None
        return output_hash(*outpoint, body(made.outputs[outpoint[1]]))

    def root(self, name: str) -> Tx:
        """Return what a transaction spends of which a case doesn't say it."""
        return Tx(self.txid(f"root of {name}"), outputs=[Output(b"\x51", 1)])

    def tx(self, op: Op) -> Tx:
        name, lacking = op["tx"], set(op.get("nilOuts") or [])
        data, plain = set(op.get("zeroData") or []), set(op.get("zeroPlain") or [])
        outputs = [
            Output(
                (b"\x6a", b"\x00\x6a")[n % 2] if n in data else b"\x76" + digest(f"{name} {n}")[:20],
                0 if n in data | plain else 1000 + n,
                spendable=n not in lacking,
            )
            for n in range(op["outs"])
        ]
        inputs = self.outpoints(op.get("ins") or [])
        if not inputs and not op.get("partial") and not op.get("coinbase"):
            inputs = [(self.root(name).txid, 0)]
        raw = (digest(f"raw {name}") * (op.get("size", 100) // HASH + 1))[: op.get("size", 100)]
        return Tx(self.txid(name), inputs, outputs, coinbase=bool(op.get("coinbase")), size=len(raw), raw=raw)
