"""The command line of the feeds: `utxod feed …`."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from pathlib import Path

import anyio
import click

from feeds.files import MessageFile, following
from feeds.link import FeedError, Link
from feeds.progress import FeedProgress
from handlers.events import Inbound, Welcome

Messages = Callable[[Welcome], AsyncIterable[Inbound]]


@click.group()
def feed() -> None:
    """Turn a chain into events and send them to the daemon."""


@feed.command("file")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--network-tip", type=click.IntRange(min=0), help="Height of the network's tip, if it is known.")
@click.option("--window", default=64, show_default=True, type=click.IntRange(min=1), help="MiB sent ahead of answers.")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for a daemon that is away; 0: for ever.")
@click.pass_obj
def from_file(socket: Path, source: str, network_tip: int | None, window: int, wait: float) -> None:
    """Send the events of SOURCE: JSON Lines or frames, `-` for standard input.

    Asks for the daemon's tip first and skips what it has. Reconnects, and resumes by itself.
    """
    file = MessageFile(None if source == "-" else Path(source))
    progress = FeedProgress(file.name, lambda: file.offset, file.size)
    link = Link(
        socket,
        network_height=network_tip,
        window_bytes=window << 20,
        patience_s=wait or float("inf"),
        told=progress.tell,
        acknowledged=progress.acknowledged,
    )
    with progress:
        run(link, lambda welcome: following(file, welcome))


def run(link: Link, messages: Messages) -> None:
    """Feed until the source ends; a failure is one clear line."""

    async def main() -> None:
        welcome = await link.arrive()
        await link.feed(messages(welcome))

    try:
        anyio.run(main, backend_options={"use_uvloop": True})
    except FeedError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
