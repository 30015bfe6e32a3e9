"""What an Ogmios server says of real blocks: an encoder of our own, from the published form of its messages."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from typing import Any

from cbor2 import CBORDecoder, loads
from msgspec.structs import replace

from formats import base58, bech32
from handlers.events import BlockApplied, Issuer, OutPoint, Output, Tx

Json = dict[str, Any]
LANGUAGES = ("native", "plutus:v1", "plutus:v2", "plutus:v3")


@dataclass(frozen=True)
class Dialect:
    version: int = 6
    transaction_cbor: bool = False
    script_cbor: bool = True


V6 = Dialect()
V7 = Dialect(7, script_cbor=False)


@lru_cache(1 << 16)
def address_text(raw: bytes) -> str:
    if raw[0] >> 4 == 8:
        return base58.encode(raw)
    return bech32.encode("addr" if raw[0] & 15 == 1 else "addr_test", *bech32.symbols(raw))


def bech32_of(prefix: str, symbols: list[int]) -> str:
    number = sum(symbol << 5 * place for place, symbol in enumerate(reversed(symbols)))
    return bech32.encode(prefix, number, len(symbols))


def block_json(block: BlockApplied, dialect: Dialect = V6, raw: bytes = b"", boundary: bool = False) -> Json:
    """Return a block as the server sends it; `raw` is needed for the CBOR of its transactions."""
    made: Json = {"type": "praos", "era": block.era, "id": block.hash.hex()}
    made["ancestor"] = "genesis" if block.prev_hash is None else block.prev_hash.hex()
    made["height"] = block.height
    if boundary:
        return made | {"type": "ebb"}
    made |= {"slot": block.slot, "size": {"bytes": block.size}, "protocol": {"version": {"major": 8, "minor": 0}}}
    made["issuer"] = issuer_json(block.issuer)
    if block.era == "byron":
        made |= {"type": "bft", "operationalCertificates": [], "delegate": {"verificationKey": "12" * 64}}
    cbors = transactions_cbor(raw) if dialect.transaction_cbor else [None] * len(block.txs)
    assert len(cbors) == len(block.txs)
    made["transactions"] = [
        transaction_json(tx, str(block.era), dialect, cbor) for tx, cbor in zip(block.txs, cbors, strict=True)
    ]
    return made


def issuer_json(issuer: Issuer | None) -> Json:
    if issuer is None or issuer.vkey is None or issuer.vrf_vkey is None or issuer.op_cert is None:
        return {"verificationKey": "ab" * 64}
    kes = {"period": 1, "verificationKey": issuer.op_cert.hex()}
    return {
        "verificationKey": issuer.vkey.hex(),
        "vrfVerificationKey": issuer.vrf_vkey.hex(),
        "operationalCertificate": {"count": issuer.op_cert_counter, "kes": kes},
        "leaderValue": {"output": "ef" * 64},
    }


def transaction_json(tx: Tx, era: str, dialect: Dialect, cbor: bytes | None) -> Json:
    byron = era == "byron"
    made: Json = {"id": tx.txid.hex(), "spends": "inputs" if tx.valid else "collaterals"}
    made["inputs"] = [reference(point) for point in (tx.inputs if byron else sorted(tx.inputs))]
    if tx.references:
        made["references"] = [reference(point) for point in sorted(tx.references)]
    if tx.outputs or dialect.version < 7:
        made["outputs"] = [output_json(output, dialect) for output in tx.outputs]
    if tx.collateral:
        made["collaterals"] = [reference(point) for point in sorted(tx.collateral)]
    if tx.collateral_return is not None:
        made["collateralReturn"] = output_json(tx.collateral_return, dialect)
        made["totalCollateral"] = {"ada": {"lovelace": 5_000_000}}
    if not byron:
        made["fee"] = {"ada": {"lovelace": tx.fee}}
        made["validityInterval"] = {"invalidAfter": 123456789}
        made["metadata"] = {"hash": "ab" * 32, "labels": {"674": {"json": {"msg": ["outputs", {"spends": 2**70}]}}}}
        made["mint"] = {"ab" * 28: {"cafe": -5}}
    made["signatories"] = [{"key": "aa" * 32, "signature": "bb" * 64}]
    if tx.datums:
        made["datums"] = {datum_hash(datum).hex(): datum.hex() for datum in sorted(tx.datums, key=datum_hash)}
    if cbor is not None:
        made["cbor"] = cbor.hex()
    return made


def datum_hash(datum: bytes) -> bytes:
    return blake2b(datum, digest_size=32).digest()


def reference(point: OutPoint) -> Json:
    return {"transaction": {"id": point[0].hex()}, "index": point[1]}


def output_json(output: Output, dialect: Dialect) -> Json:
    made: Json = {"address": address_text(output.address), "value": {"ada": {"lovelace": output.value}}}
    for policy, name, quantity in sorted(output.assets):
        made["value"].setdefault(policy.hex(), {})[name.hex()] = quantity
    if output.datum_hash is not None:
        made["datumHash"] = output.datum_hash.hex()
    if output.inline_datum is not None:
        made["datum"] = output.inline_datum.hex()
    if output.script_ref is not None:
        made["script"] = script_json(output.script_ref, dialect)
    return made


def script_json(script_ref: bytes, dialect: Dialect) -> Json:
    language, script = loads(script_ref)
    if language:
        return {"language": LANGUAGES[language], "cbor": script.hex()}
    made = {"language": "native", "json": clause(script)}
    return made | {"cbor": script_ref[2:].hex()} if dialect.script_cbor else made


def clause(script: list[Any]) -> Json:
    kind, *rest = script
    if kind == 0:
        return {"clause": "signature", "from": rest[0].hex()}
    if kind in (1, 2):
        return {"clause": ("all", "any")[kind - 1], "from": [clause(each) for each in rest[0]]}
    if kind == 3:
        return {"clause": "some", "atLeast": rest[0], "from": [clause(each) for each in rest[1]]}
    return {"clause": ("after", "before")[kind - 4], "slot": rest[0]}


def transactions_cbor(raw: bytes) -> list[bytes]:
    """Return the transactions of a block, whose parts a block keeps in separate lists."""
    era, block = loads(raw)[0], Parts(raw)
    block.enter(2)
    next(block)
    block.enter()
    next(block)  # the header
    if era < 2:
        block.enter()
        return [] if era == 0 else list(block.items())
    bodies, witnesses = list(block.items()), list(block.items())
    metadata = dict(block.entries())
    invalid = set(loads(next(block))) if era >= 5 else set()
    made = []
    for n, (body, witness) in enumerate(zip(bodies, witnesses, strict=True)):
        valid = b"" if era < 5 else b"\xf4" if n in invalid else b"\xf5"
        made.append((b"\x84" if valid else b"\x83") + body + witness + valid + metadata.get(n, b"\xf6"))
    return made


class Parts:
    """Consecutive CBOR items in their original bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._file = BytesIO(raw)
        self._decoder = CBORDecoder(self._file)

    def enter(self, count: int | None = None) -> int | None:
        """Step into an array or map; return its number of items, None for an indefinite length."""
        first = self._file.read(1)[0]
        size = first & 31
        assert first >> 5 in (4, 5)
        found = None if size == 31 else size if size < 24 else int.from_bytes(self._file.read(1 << (size - 24)), "big")
        assert count is None or found == count
        return found

    def __next__(self) -> bytes:
        begin = self._file.tell()
        self._decoder.decode()
        return self._raw[begin : self._file.tell()]

    def _more(self) -> bool:
        if self._raw[self._file.tell()] != 0xFF:
            return True
        self._file.read(1)
        return False

    def items(self) -> Iterator[bytes]:
        count = self.enter()
        while self._more() if count is None else count > 0:
            yield next(self)
            count = None if count is None else count - 1

    def entries(self) -> Iterator[tuple[int, bytes]]:
        count = self.enter()
        while self._more() if count is None else count > 0:
            yield loads(next(self)), next(self)
            count = None if count is None else count - 1


def carried(block: BlockApplied, dialect: Dialect = V6) -> BlockApplied:
    """Return a block without the parts that a message cannot carry."""
    byron = block.era == "byron"
    return replace(block, txs=[_carried_tx(tx, byron, dialect) for tx in block.txs])


def _carried_tx(tx: Tx, byron: bool, dialect: Dialect) -> Tx:
    return replace(
        tx,
        inputs=tx.inputs if byron else sorted(tx.inputs),
        collateral=sorted(tx.collateral),
        references=sorted(tx.references),
        outputs=[_carried_output(output) for output in tx.outputs],
        collateral_return=tx.collateral_return and _carried_output(tx.collateral_return),
        size=tx.size if dialect.transaction_cbor else None,
        details=tx.details if dialect.transaction_cbor else None,
        datums=sorted(tx.datums, key=datum_hash),
    )


def _carried_output(output: Output) -> Output:
    return replace(output, assets=sorted(output.assets))


def forked(block: Json, ancestor: str, *, without: int = 0) -> Json:
    """Return another block at the height of this one, after `ancestor`, without some of its transactions."""
    txs: Sequence[Json] = block["transactions"]
    made = dict(block, ancestor=ancestor, transactions=txs[: max(len(txs) - without, 0)])
    return made | {"id": blake2b(json.dumps(made).encode(), digest_size=32).hexdigest()}
