"""`utxod verify` and `utxod export`: commands that read the whole store."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from daemon.child import Place
from daemon.commands.common import (
    AFTER_VERIFY,
    CONTRADICTED,
    DAMAGED,
    Exit,
    config_option,
    pipe_may_close,
    store_errors,
)
from daemon.commands.progress import Progress, in_numbers
from daemon.inspect import Copy, copy_place
from daemon.inspect import export as write
from daemon.inspect import verify as walk


@click.command()
@config_option
@click.option("--quick", is_flag=True, help="Read the store in place, without a copy, and do not try the undo logs.")
@click.option(
    "--copy-to",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Folder for the copy; by default data_dir, or $TMPDIR if data_dir is not writable.",
)
@click.pass_context
def verify(context: click.Context, quick: bool, copy_to: Path | None) -> None:
    """Read every page, check every table, and report each violation that is found.

    Exits 3 if the store is damaged: its pages or rows contradict each other. Exits 4 if the store is sound, but
    transaction records contradict the chain, because a feeder or a submission sent contradictory data: `utxod reindex
    --records` rebuilds them.
    """
    place, copy = Place(), Copy(None) if quick else copy_place(context.obj.config, copy_to)
    context.obj.continue_in_child(place, copy.place)
    with store_errors(), Progress("verify", None, in_numbers, "rows") as progress:

        def report(table: str, row: int, key: bytes) -> None:
            place.note(table, row, key)
            progress.advance(1, table)

        found = walk(context.obj.config, copy, report)
    for finding in (*found.findings, *found.contradictions):
        click.echo(finding, err=True)
    for note in found.notes:
        click.echo(note)
    if found.findings:
        raise Exit(f"the store is damaged: {AFTER_VERIFY} (a wrong index alone: `utxod reindex`)", DAMAGED)
    if found.contradictions:
        advice = "stop the daemon and run `utxod reindex --records`"
        raise Exit(f"the store is sound; transaction records contradict the chain: {advice}", CONTRADICTED)
    click.echo("sound")


@click.command()
@config_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl"]),
    default="csv",
    show_default=True,
    help="Format of the lines.",
)
@click.pass_context
def export(context: click.Context, form: str) -> None:
    """Write the set of unspent outputs in chain order; csv lines are txid,index,value,hex address.

    The set is that of the tip when the command begins. Exits 1 if that block is rolled back meanwhile, or gets
    below the rollback floor: the output is then incomplete.
    """
    context.obj.continue_in_child()
    with store_errors(), pipe_may_close(), Progress("export", None, in_numbers, "outputs") as progress:
        for chunk in write(context.obj.config, form, progress.expect):
            sys.stdout.buffer.write(chunk)
            progress.advance(chunk.count(b"\n"))
