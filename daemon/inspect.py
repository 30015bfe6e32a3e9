"""Looking at a store beside its daemon: read-only, one consistent state each."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from config.settings import Config
from daemon.store import chain_name, folder, open_disk, windows
from storage import keys
from storage.disk import Txn
from storage.rows import SPENT, BlockRow, Body, address_of, unpack
from storage.utxo import UtxoStore
from storage.verify import verify as verify_store

_CHUNK_ROWS = 4096


def _open(config: Config) -> UtxoStore:
    store = UtxoStore(open_disk(config, readonly=True))
    store.check_format(chain_name(config))
    return store


def verify(config: Config, *, quick: bool) -> list[str]:
    """Return what is wrong with the store."""
    store = _open(config)
    with store.disk:
        return verify_store(store, windows(config), quick=quick)


def status(config: Config, *, as_json: bool) -> str:
    """Return where the store is, for a person or a program."""
    store = _open(config)
    with store.disk, store.disk.read() as txn:
        facts = _facts(store, txn, config)
    if as_json:
        return msgspec.json.encode(facts).decode()
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, _readable(value))
    console = Console(file=StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _facts(store: UtxoStore, txn: Txn, config: Config) -> dict[str, Any]:
    state, reach = store.state(txn), windows(config)

    def point(ordinal: int) -> dict[str, object] | None:
        if ordinal == keys.GENESIS:
            return None
        block: BlockRow = store.block_at(txn, ordinal)
        return {"height": block.height, "slot": block.slot, "hash": block.hash.hex()}

    return {
        "chain": store.chain(txn),
        "tip": point(state.tip),
        "blocks_applied": state.tip,
        "unspent": state.unspent,
        "rollback_floor": point(reach.floor(state)),
        "persisted_height": state.persisted,
        "prune_depth": reach.prune_depth,
        "rollback_window": reach.rollback_window,
        "prune_backlog_blocks": max(state.tip - reach.keep_undo - state.undo_cursor[0], 0),
        "indexes": store.kept_indexes(txn),
        "rows": {name: txn.stat(db)["entries"] for name, db in store.disk.tables.items()},
        "bytes_used": store.disk.used(),
        "map_size": store.disk.map_size(),
        "folder": str(folder(config)),
    }


def _readable(value: Any) -> str:
    match value:
        case None:
            return "–"
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(str, value)) or "–"
        case dict():
            return "  ".join(f"{name} {_readable(item)}" for name, item in value.items())
        case _:
            return str(value)


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
