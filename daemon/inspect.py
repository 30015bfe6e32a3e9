"""Looking at a store beside its daemon: read-only, one consistent state each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import msgspec

from config.settings import Config
from daemon.store import chain_name, leaf_writer, limited, open_disk, windows
from handlers.audit import Audited, audit
from storage.export import live_set
from storage.rows import Body, address_of, unpack
from storage.utxo import UtxoStore
from storage.verify import verify as verify_store


def _open(config: Config) -> UtxoStore:
    store = UtxoStore(open_disk(config, readonly=True), leaf_writer(config))
    store.check_format(chain_name(config))
    return store


def verify(config: Config, *, quick: bool) -> Audited:
    """Return what is wrong with the store, and which transactions are half-made: that is no damage, it heals."""
    store, half_made = _open(config), list[str]()

    def records(seen: UtxoStore) -> list[str]:
        if not config.transactions.enabled:
            return []
        audited = audit(seen, config.transactions.block_height_retention)
        half_made.extend(audited.half_made)
        return audited.findings

    in_place = limited(store.disk, "leave out --quick, so that a copy is read")
    with store.disk, in_place if quick else nullcontext():
        return Audited(verify_store(store, windows(config), quick=quick, also=records), half_made)


def export(config: Config, form: str) -> Iterator[bytes]:
    """Yield the live set in chain order, some thousand lines at a time.

    Raises:
        ChainMoved: it can't be completed.
    """
    store = _open(config)
    line = _csv if form == "csv" else _json
    with store.disk:
        for live in live_set(store):
            yield b"".join([line(*output) for output in live])


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
