"""`utxod query …`: queries to the store, with or without a running daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from daemon.commands.common import Group, config_option, json_option

if TYPE_CHECKING:
    from handlers.query import Order
    from handlers.waiting import Order as WaitingOrder
    from handlers.waiting import Status as Waits


def _page_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that prints a page of a list."""
    order = click.Choice(["asc", "desc"])
    for option in (
        json_option("An object: the list as HTTP has it, `tip`, and `next_cursor`."),
        click.option("--cursor", help="Cursor of the previous page."),
        click.option("--order", type=order, default="asc", show_default=True, help="By place in chain."),
        click.option("--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many."),
    ):
        command = option(command)
    return command


@click.group(cls=Group)
@config_option
@click.pass_context
def query(context: click.Context) -> None:
    """Query the store. It is read directly; HTTP is not needed.

    Works with or without a running daemon, and does not disturb it. Every answer is of one block boundary.
    """
    context.obj.go_on_in_child()


@query.command()
@config_option
@click.argument("address")
@_page_options
@click.pass_context
def address(context: click.Context, address: str, count: int, order: Order, cursor: str | None, as_json: bool) -> None:
    """List the live outputs of ADDRESS, in chain order.

    ADDRESS is bech32, base58, or hex of its raw bytes (a locking script for Bitcoin); a payment credential does too.
    """
    from daemon.commands import lookup

    lookup.address(context.obj.config, address, count, order, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("policy")
@_page_options
@click.pass_context
def policy(context: click.Context, policy: str, count: int, order: Order, cursor: str | None, as_json: bool) -> None:
    """List the live outputs that hold assets of POLICY (56 hex digits), in chain order.

    Needs the index by policy (utxo.index.policy).
    """
    from daemon.commands import lookup

    lookup.by(context.obj.config, "policy", policy, count, order, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("kind", type=click.Choice(["asset", "datum", "script"]))
@click.argument("key")
@_page_options
@click.pass_context
def by(
    context: click.Context, kind: str, key: str, count: int, order: Order, cursor: str | None, as_json: bool
) -> None:
    """List the live outputs that an index has under KEY, which is hex.

    It needs the index of that kind (utxo.index).
    """
    from daemon.commands import lookup

    lookup.by(context.obj.config, kind, key, count, order, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("address")
@_page_options
@click.pass_context
def transactions(
    context: click.Context, address: str, count: int, order: Order, cursor: str | None, as_json: bool
) -> None:
    """List the transactions that paid to ADDRESS or spent from it, also long ago, in chain order.

    It needs the index utxo.index.history.
    """
    from daemon.commands import lookup

    lookup.transactions(context.obj.config, address, count, order, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("owner", metavar="ADDRESS|CREDENTIAL")
@json_option("The same object as HTTP.")
@click.pass_context
def balance(context: click.Context, owner: str, as_json: bool) -> None:
    """Sum what an address, or a payment credential (56 hex digits or bech32), holds."""
    from daemon.commands import lookup

    lookup.balance(context.obj.config, owner, as_json=as_json)


@query.command()
@config_option
@click.argument("txid", metavar="TXID#INDEX | TXID INDEX")
@click.argument("index", required=False, metavar="")
@json_option("The same object as HTTP.")
@click.pass_context
def utxo(context: click.Context, txid: str, index: str | None, as_json: bool) -> None:
    """Show one output, live or spent, for as long as it is kept."""
    from daemon.commands import lookup

    lookup.utxo(context.obj.config, txid, index, as_json=as_json)


@query.command()
@config_option
@click.argument("datum_hash", metavar="HASH")
@json_option("The same object as HTTP.")
@click.pass_context
def datum(context: click.Context, datum_hash: str, as_json: bool) -> None:
    """Print the datum with HASH (64 hex digits) as hex: inline in an output, or revealed by a block's witnesses.

    Needs the index by datum (utxo.index.datum). The datum is known while an output
    that has its hash is kept.
    """
    from daemon.commands import lookup

    lookup.datum(context.obj.config, datum_hash, as_json=as_json)


@query.command()
@config_option
@click.argument("block", metavar="HEIGHT|HASH")
@json_option("The same object as HTTP.")
@click.pass_context
def block(context: click.Context, block: str, as_json: bool) -> None:
    """Show what is kept of one block, however old. Of several blocks of one height it is the first."""
    from daemon.commands import blocks

    blocks.block(context.obj.config, block, as_json=as_json)


@query.command()
@config_option
@click.argument("block", metavar="HEIGHT|HASH")
@json_option("The same object as HTTP.")
@click.pass_context
def delta(context: click.Context, block: str, as_json: bool) -> None:
    """List what one block created and spent.

    The block is above the rollback floor: there is no delta of an older one. Of several blocks of one height it is the
    first.
    """
    from daemon.commands import blocks

    blocks.delta(context.obj.config, block, as_json=as_json)


@query.command()
@config_option
@click.option(
    "--status",
    type=click.Choice(["unmined", "conflicting"]),
    default="unmined",
    show_default=True,
    help="Those that wait, or those that have lost a conflict.",
)
@click.option(
    "--order",
    type=click.Choice(["parents_first", "age"]),
    default="parents_first",
    show_default=True,
    help="By age, or none before what it spends.",
)
@click.option("--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many.")
@click.option("--cursor", help="Cursor of the previous page.")
@json_option("An object: `transactions` as HTTP has them, `tip`, and `next_cursor`.")
@click.pass_context
def txs(
    context: click.Context, status: Waits, order: WaitingOrder, count: int, cursor: str | None, as_json: bool
) -> None:
    """List the transactions that wait for a block, or those that have lost a conflict; parents first."""
    from daemon.commands import waiting

    waiting.txs(context.obj.config, status, order, count, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("txid")
@click.option("--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many of its outputs.")
@click.option("--page", type=click.IntRange(1, 1 << 32), default=1, show_default=True, help="Which of them.")
@json_option("An object: `transaction`, `slots` and `utxos` as HTTP has them, `block` where it is, and `tip`.")
@click.pass_context
def tx(context: click.Context, txid: str, count: int, page: int, as_json: bool) -> None:
    """Show where transaction TXID is, what it spends, and who may spend its outputs.

    First what is known of it: a field without a value is left out, --json has all. Then its outputs, a line each:
    the state (unspent, spent, frozen, or none for an unspendable output), what spends or claims it, and, while the
    UTXO store keeps the output, its amount and owner. Where transactions are not kept (transactions.enabled) it lists
    the outputs in the UTXO store: exit code 1.
    """
    from daemon.commands import tx

    tx.tx(context.obj.config, txid, count, page, as_json=as_json)
