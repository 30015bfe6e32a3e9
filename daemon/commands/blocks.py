"""Single blocks for a person or a script, in the formats of the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from rich.table import Table

from config.settings import Config
from daemon.commands.common import FAILED, WRONG_USE, Exit, pipe_may_close, show
from daemon.commands.lookup import heading, list_of, print_json, querying, show_fields
from daemon.store import windows
from handlers.answers import TipAnswer
from handlers.blocks import facts
from handlers.deltas import Changed, InJson, NoDelta, find, read_block


def block(config: Config, text: str, *, as_json: bool) -> None:
    """Print what is kept of one block."""
    wanted = _block(text)
    with querying(config) as shot:
        try:
            found = facts(shot, wanted)
        except NoDelta as none:
            raise Exit(str(none), FAILED) from none
    if as_json:
        print_json(found)
    else:
        show_fields(found)


def _block(text: str) -> int | bytes:
    try:
        return read_block(text)
    except ValueError as error:
        raise Exit(f"block is {error}", WRONG_USE) from None


def delta(config: Config, text: str, *, as_json: bool) -> None:
    """Print what one block created and spent."""
    block = _block(text)
    with querying(config) as shot:
        try:
            found = find(shot, windows(config), block, InJson(shot))
        except NoDelta as none:
            raise Exit(str(none), FAILED) from none
        for _ in found.read():
            pass
        answer = found.whole()
    if as_json:
        with pipe_may_close():
            click.echo(answer)
        return
    point = TipAnswer(found.block.height, found.block.slot, found.block.hash.hex())
    with pipe_may_close():
        show(heading(point), f"created {len(found.created):,}", _changed(found.created))
        show("", f"spent {len(found.spent):,}", _changed(found.spent))


def _changed(outputs: Sequence[Changed]) -> Table:
    return list_of([msgspec.structs.replace(each.utxo, spent_tx_hash=each.spent_tx_hash) for each in outputs])
