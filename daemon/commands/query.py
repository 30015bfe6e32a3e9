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
        json_option("Print a JSON object: the list as in the HTTP API, `tip` and `next_cursor`."),
        click.option("--cursor", help="Cursor of the previous page."),
        click.option("--order", type=order, default="asc", show_default=True, help="Order, by place in the chain."),
        click.option("--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many."),
    ):
        command = option(command)
    return command


@click.group(cls=Group)
@config_option
@click.pass_context
def query(context: click.Context) -> None:
    """Query the store. The commands read it directly, without HTTP.

    Works with or without a running daemon, and does not affect it. Every answer is consistent as of one block.
    """
    context.obj.continue_in_child()


@query.command()
@config_option
@click.argument("address")
@_page_options
@click.pass_context
def address(context: click.Context, address: str, count: int, order: Order, cursor: str | None, as_json: bool) -> None:
    """List the unspent outputs of ADDRESS, in chain order.

    ADDRESS is bech32, base58, or hex of its raw bytes (a locking script for Bitcoin), or a payment credential.
    """
    from daemon.commands import lookup

    lookup.address(context.obj.config, address, count, order, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("policy")
@_page_options
@click.pass_context
def policy(context: click.Context, policy: str, count: int, order: Order, cursor: str | None, as_json: bool) -> None:
    """List the unspent outputs that contain assets of POLICY (56 hex digits), in chain order.

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
    """List the unspent outputs that an index has under KEY, which is hex.

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
    """List all transactions that paid to ADDRESS or spent from it, in chain order.

    It needs the index utxo.index.history.
    """
    from daemon.commands import lookup

    lookup.transactions(context.obj.config, address, count, order, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("owner", metavar="ADDRESS|CREDENTIAL")
@json_option("Print the same JSON object as the HTTP API.")
@click.pass_context
def balance(context: click.Context, owner: str, as_json: bool) -> None:
    """Show the balance of an address, or of a payment credential (56 hex digits or bech32)."""
    from daemon.commands import lookup

    lookup.balance(context.obj.config, owner, as_json=as_json)


@query.command()
@config_option
@click.argument("txid", metavar="TXID#INDEX | TXID INDEX")
@click.argument("index", required=False, metavar="")
@json_option("Print the same JSON object as the HTTP API.")
@click.pass_context
def utxo(context: click.Context, txid: str, index: str | None, as_json: bool) -> None:
    """Show one output, unspent or spent, for as long as it is kept."""
    from daemon.commands import lookup

    lookup.utxo(context.obj.config, txid, index, as_json=as_json)


@query.command()
@config_option
@click.argument("datum_hash", metavar="HASH")
@json_option("Print the same JSON object as the HTTP API.")
@click.pass_context
def datum(context: click.Context, datum_hash: str, as_json: bool) -> None:
    """Print the datum with HASH (64 hex digits) as hex: inline in an output, or among the witnesses of a block.

    Needs the index by datum (utxo.index.datum). The datum is available while an output
    with its hash is kept.
    """
    from daemon.commands import lookup

    lookup.datum(context.obj.config, datum_hash, as_json=as_json)


@query.command()
@config_option
@click.argument("block", metavar="HEIGHT|HASH")
@json_option("Print the same JSON object as the HTTP API.")
@click.pass_context
def block(context: click.Context, block: str, as_json: bool) -> None:
    """Show the stored data of one block. If several blocks have one height, it is the first."""
    from daemon.commands import blocks

    blocks.block(context.obj.config, block, as_json=as_json)


@query.command()
@config_option
@click.argument("block", metavar="HEIGHT|HASH")
@json_option("Print the same JSON object as the HTTP API.")
@click.pass_context
def delta(context: click.Context, block: str, as_json: bool) -> None:
    """List the outputs that one block created and spent.

    The block must be above the rollback floor. If several blocks have one height, it is the first.
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
    help="Unmined transactions, or those that have lost a conflict.",
)
@click.option(
    "--order",
    type=click.Choice(["parents_first", "age"]),
    default="parents_first",
    show_default=True,
    help="Order by age, or with every transaction after those that it spends from.",
)
@click.option("--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many.")
@click.option("--cursor", help="Cursor of the previous page.")
@json_option("Print a JSON object: `transactions` as in the HTTP API, `tip` and `next_cursor`.")
@click.pass_context
def txs(
    context: click.Context, status: Waits, order: WaitingOrder, count: int, cursor: str | None, as_json: bool
) -> None:
    """List unmined transactions, or those that have lost a conflict, parents first."""
    from daemon.commands import waiting

    waiting.txs(context.obj.config, status, order, count, cursor, as_json=as_json)


@query.command()
@config_option
@click.argument("txid")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="Number of outputs on a page."
)
@click.option("--page", type=click.IntRange(1, 1 << 32), default=1, show_default=True, help="Page of its outputs.")
@json_option("Print a JSON object: `transaction`, `slots` and `utxos` as in the HTTP API, its `block`, and `tip`.")
@click.pass_context
def tx(context: click.Context, txid: str, count: int, page: int, as_json: bool) -> None:
    """Show transaction TXID, its block, its inputs, and the state of its outputs.

    The first part has its fields, without those that have no value; --json prints all. The second part has a line for
    each output: the state (unspent, claimed by an unmined transaction, spent, frozen, or none for an unspendable
    output), the input that spends or claims it, and the amount and owner while the UTXO store keeps the output.
    Without the transaction store (transactions.enabled) the command lists the outputs in the UTXO store and exits
    with 1.
    """
    from daemon.commands import tx

    tx.tx(context.obj.config, txid, count, page, as_json=as_json)
