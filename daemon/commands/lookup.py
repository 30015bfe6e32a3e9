"""Answers from the store for a person or a script, in the formats of the HTTP API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import click
import msgspec
from msgspec import UNSET, Struct
from rich.table import Table

from config.settings import Config
from daemon.commands.common import FAILED, WRONG_USE, Exit, pipe_may_close, show, store_errors
from daemon.store import limited, open_query
from handlers.addresses import AddressError, codec
from handlers.answers import Amount, Balance, TipAnswer, Utxo, to_tip
from handlers.cursors import BadCursor
from handlers.datums import Datum, find_datum
from handlers.query import CursorGone, Listed, NoIndex, Order, Page, Snapshot, Sum, amounts
from handlers.touched import touching
from handlers.tx_query import Inpoint

_encode = msgspec.json.Encoder().encode
_HASH_DIGITS = 64
_CREDENTIAL_DIGITS = 56
_KEYS = {  # what a key is called, and its least and most bytes
    "policy": ("a policy id", 28, 28),
    "asset": ("an asset", 28, 60),
    "datum": ("a datum hash", 32, 32),
    "script": ("a script hash", 28, 28),
}
_MOST_INDEX = 0xFFFF_FFFF
_OUTPOINT = re.compile(r"([0-9a-fA-F]{64})[#:./_-]([0-9]{1,10})")  # an output, in all ways in which people write one
_CREDENTIALS = {"cardano": ", and payment credentials (56 hex digits, addr_vkh1…)", "bitcoin": "", "raw": ""}
_Where = Callable[[Snapshot], Listed]


def address(config: Config, text: str, count: int, order: Order, cursor: str | None, *, as_json: bool) -> None:
    """Print a page of an owner's live outputs."""
    _page(config, _owner(config, text), count, order, cursor, as_json=as_json)


def by(config: Config, kind: str, text: str, count: int, order: Order, cursor: str | None, *, as_json: bool) -> None:
    """Print a page of the live outputs under a key of an index."""
    raw = _key(kind, text)
    key = sha256(raw).digest() if kind == "asset" else raw
    _page(config, lambda shot: shot.listed(kind, key), count, order, cursor, as_json=as_json)


def transactions(config: Config, text: str, count: int, order: Order, cursor: str | None, *, as_json: bool) -> None:
    """Print a page of the transactions that touched an address."""
    text_of = codec(config.chain.family, config.chain.network)
    try:
        address = text_of.read(text)
    except AddressError as error:
        raise Exit(f"address: {error}; accepted are {text_of.forms}", WRONG_USE) from error
    with querying(config) as shot:
        found, tip = touching(shot, address, count, order, 1, cursor), shot.tip()
    if as_json:
        shown = {name: getattr(found, name) for name in ("transactions", "next_cursor", "complete_from")}
        print_json({"tip": tip and to_tip(tip)} | shown)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("height", "slot", "transaction"):
        table.add_column(column, justify="left" if column == "transaction" else "right", no_wrap=True)
    for tx in found.transactions:
        table.add_row(f"{tx.block_height:,}", f"{tx.slot:,}", tx.tx_hash)
    since = f"every transaction from height {found.complete_from:,} on"
    with pipe_may_close():
        show(table, since, *([] if found.next_cursor is None else [f"there are more: --cursor {found.next_cursor}"]))


def datum(config: Config, text: str, *, as_json: bool) -> None:
    """Print one datum."""
    digest = _key("datum", text)
    with querying(config) as shot:
        found = find_datum(shot, digest)
    if found is None:
        raise Exit(f"no datum with the hash {digest.hex()} is available: not in a block yet, or not kept", FAILED)
    if as_json:
        print_json(Datum(digest.hex(), found.hex()))
        return
    with pipe_may_close():
        click.echo(found.hex())


def _page(config: Config, where: _Where, count: int, order: Order, cursor: str | None, *, as_json: bool) -> None:
    with querying(config) as shot:
        page, tip = shot.page(where(shot), count, order, 1, cursor), shot.tip()
    if as_json:
        print_json({"tip": tip and to_tip(tip), "utxos": page.utxos, "next_cursor": page.next_cursor})
        return
    with pipe_may_close():
        show(list_of(page.utxos), *_more(page))


def balance(config: Config, text: str, *, as_json: bool) -> None:
    """Print what an owner holds."""
    where, total = _owner(config, text), Sum(assets={})
    with querying(config) as shot:
        for so_far in shot.balance(where(shot)):
            total = so_far
        held = amounts(shot.query.unit, total.value, sorted(total.assets.items()))
    if as_json:
        print_json(Balance(lovelace_amount=total.value, amounts=held, utxo_count=total.count))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("quantity", justify="right", no_wrap=True)
    table.add_column("unit", overflow="fold")
    for amount in held:
        table.add_row(f"{int(amount.quantity):,}", amount.unit)
    with pipe_may_close():
        show(table, f"in {total.count:,} unspent output{'' if total.count == 1 else 's'}")


def utxo(config: Config, txid: str, index: str | None, *, as_json: bool) -> None:
    """Print one output."""
    if index is None:
        if (other := _OUTPOINT.fullmatch(txid)) and "#" not in txid:
            raise Exit(f"{txid!r} is not an output: write it as {other[1]}#{other[2]}", WRONG_USE)
        txid, hash_mark, index = txid.partition("#")
        if not hash_mark and len(txid) == _HASH_DIGITS:
            raise Exit(f"which output? Write TXID#INDEX: {txid}#0 is its first", WRONG_USE)
    place = txid_of(txid), _index(index)
    with querying(config) as shot:
        found = shot.find(*place)
    if found is None:
        raise Exit(f"{txid}#{place[1]} is not in the store: it was never created, or was spent and pruned", FAILED)
    if as_json:
        print_json(found)
    else:
        show_fields(found)


def show_fields(found: Struct) -> None:
    """Print an answer's fields, a line each."""
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in msgspec.structs.asdict(found).items():
        if value is not None and value is not UNSET:
            table.add_row(name, readable(value))
    with pipe_may_close():
        show(table)


# --- queries -----------------------------------------------------------------------------------------------------


@contextmanager
def querying(config: Config) -> Iterator[Snapshot]:
    """Open one block boundary for queries; a query that fails ends with a one-line error."""
    if not config.utxo.enabled:
        raise Exit("the UTXO store is not enabled (utxo.enabled)", FAILED)
    with store_errors():
        try:
            with open_query(config) as query, limited(query.store.disk), query.snapshot() as shot:
                yield shot
        except NoIndex as error:
            advice = f"utxo.index.{error} switches it on, `utxod reindex` builds it"
            raise Exit(f"the index {error} is not kept: {advice}", FAILED) from error
        except BadCursor as error:
            raise Exit("--cursor: it does not belong to this query", WRONG_USE) from error
        except CursorGone as error:
            raise Exit(f"--cursor: {error}; start again without it", FAILED) from error


def _owner(config: Config, text: str) -> _Where:
    """Return where an owner's outputs are listed: 56 hex digits are a credential where the chain has them."""
    text_of = codec(config.chain.family, config.chain.network)
    if text_of.missing:
        click.echo(f"Warning: {text_of.missing}", err=True)
    if config.chain.family == "cardano" and len(text) == _CREDENTIAL_DIGITS:
        try:
            credential = bytes.fromhex(text)
            return lambda shot: shot.by_credential(credential)
        except ValueError:
            pass
    try:
        raw = text_of.read(text)
    except AddressError as error:
        try:
            credential = text_of.read_credential(text)
        except AddressError:
            raise Exit(
                f"address: {error}; accepted are {text_of.forms}{_CREDENTIALS[text_of.family]}", WRONG_USE
            ) from error
        return lambda shot: shot.by_credential(credential)
    return lambda shot: shot.by_address(raw)


def _key(kind: str, text: str) -> bytes:
    """Return the key of an index that a hex text names."""
    name, least, most = _KEYS[kind]
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if not least <= len(raw) <= most or len(text) != 2 * len(raw):  # fromhex passes over spaces
        digits = f"{least * 2}" if least == most else f"{least * 2} to {most * 2}"
        raise Exit(f"{text!r} is not {name}: expected {digits} hex digits", WRONG_USE)
    return raw


def txid_of(text: str) -> bytes:
    """Return the transaction id that is written so."""
    try:
        raw = bytes.fromhex(text) if len(text) == _HASH_DIGITS else b""
    except ValueError:
        raw = b""
    if raw:
        return raw
    message = f"{text!r} is not a transaction id: expected {_HASH_DIGITS} hex digits"
    if place := _OUTPOINT.fullmatch(text):
        message += f": {place[1]}#{place[2]} is one of its outputs, see `utxod query utxo`"
    raise Exit(message, WRONG_USE)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MOST_INDEX):
        raise Exit(f"{text!r} is not an output index: expected TXID#INDEX, from 0 to {_MOST_INDEX}", WRONG_USE)
    return int(text)


# --- layout ------------------------------------------------------------------------------------------------------


def print_json(answer: Any) -> None:
    """Print an answer as HTTP gives it."""
    with pipe_may_close():
        click.echo(_encode(answer))


def list_of(utxos: Sequence[Utxo]) -> Table:
    """Return outputs as a table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("height", "slot"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("output", overflow="fold")
    table.add_column("amount", justify="right", no_wrap=True)
    for name in ("assets", "with", "spent by"):
        table.add_column(name, overflow="fold")
    for utxo in utxos:
        spender = utxo.spent_tx_hash if isinstance(utxo.spent_tx_hash, str) else ""
        amount = f"{utxo.lovelace_amount:,} {utxo.amounts[0].unit}"
        table.add_row(
            f"{utxo.block:,}",
            f"{utxo.slot:,}",
            f"{utxo.tx_hash}#{utxo.output_index}",
            amount,
            "\n".join(map(_amount, utxo.amounts[1:])),
            _parts(utxo),
            spender,
        )
    return table


def heading(block: TipAnswer) -> str:
    """Return where a block is."""
    return f"height {block.height:,}, slot {block.slot:,}, {block.hash}"


def _more(page: Page) -> list[str]:
    if page.next_cursor is None:
        return [] if page.utxos else ["no unspent outputs"]
    return [f"there are more: --cursor {page.next_cursor}"]


def _amount(amount: Amount) -> str:
    return f"{int(amount.quantity):,} {amount.unit}"


def _parts(utxo: Utxo) -> str:
    parts = {
        "datum": utxo.inline_datum is not None,
        "datum hash": utxo.data_hash is not None and utxo.inline_datum is None,
        "script": utxo.script_ref is not None or utxo.reference_script_hash is not None,
        "collateral return": utxo.is_collateral_return,
    }
    return ", ".join(name for name, there in parts.items() if there)


def item(value: object) -> str:
    """Return one entry of a list as a person reads it."""
    match value:
        case Inpoint():
            shown = [f"value {value.value:,}", f"script {value.script}"] if value.value is not None else []
            return ", ".join([f"{value.tx_hash}#{value.output_index}", *shown])
        case Struct():
            return ", ".join(f"{name} {part}" for name, part in msgspec.structs.asdict(value).items())
        case None:
            return "–"
        case _:
            return str(value)


def readable(value: object) -> str:
    """Return a field's value as a person reads it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return "\n".join(_amount(each) if isinstance(each, Amount) else item(each) for each in value)
        case _:
            return str(value)
