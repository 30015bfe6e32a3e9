"""Looking at a store beside its daemon: read-only, one consistent state each."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from config.settings import Config
from daemon.store import chain_name, leaf_writer, open_disk, windows
from handlers.audit import Audited, audit
from storage import keys
from storage.rows import SPENT, Body, address_of, unpack
from storage.utxo import UtxoStore
from storage.verify import verify as verify_store

_CHUNK_ROWS = 4096


def _open(config: Config) -> UtxoStore:
    store = UtxoStore(open_disk(config, readonly=True), leaf_writer(config))
    store.check_format(chain_name(config))
    return store


def verify(config: Config, *, quick: bool) -> Audited:
    """Return what is wrong with the store, and which transactions are half-made: that is no damage, it heals."""
    store = _open(config)
    with store.disk:
        findings, half_made = verify_store(store, windows(config), quick=quick), list[str]()
        if config.transactions.enabled:
            audited = audit(store, config.transactions.block_height_retention)
            findings, half_made = findings + audited.findings, audited.half_made
        return Audited(findings, half_made)


def export(config: Config, form: str) -> Iterator[bytes]:
    """Yield the live set in chain order, some thousand lines at a time."""
    store = _open(config)
    line = _csv if form == "csv" else _json
    with store.disk, store.disk.read() as txn:
        lines: list[bytes] = []
        home, txid = b"", b""
        for place, row in store.scan(txn, store.output):
            if row[0] == SPENT:
                continue
            if place[:8] != home:
                home, txid = place[:8], store.txid_at(txn, place)
            lines.append(line(txid, keys.number(place[8:]), row))
            if len(lines) >= _CHUNK_ROWS:
                yield b"".join(lines)
                lines.clear()
        yield b"".join(lines)


def _csv(txid: bytes, index: int, row: bytes) -> bytes:
    body = unpack(Body, row, f"output {txid.hex()}#{index}")
    return f"{txid.hex()},{index},{body.value},{address_of(row).hex()}\n".encode()


def _json(txid: bytes, index: int, row: bytes) -> bytes:
    body = unpack(Body, row, f"output {txid.hex()}#{index}")
    assets = [[policy.hex(), name.hex(), str(quantity)] for policy, name, quantity in body.assets]
    fields: dict[str, object] = {
        "txid": txid.hex(),
        "index": index,
        "value": body.value,
        "address": body.address.hex(),
        "assets": assets,
        "is_collateral_return": body.is_collateral_return,
    }
    for name in ("datum_hash", "inline_datum", "script_ref", "script_ref_hash"):
        raw: bytes | None = getattr(body, name)
        fields[name] = None if raw is None else raw.hex()
    return msgspec.json.encode(fields) + b"\n"
