"""Code that all feeds share: sending to the daemon, counting, or writing to a file; progress, and a final line."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from feeds.encoded import Encoded
from feeds.errors import FeedError
from feeds.link import Link
from feeds.progress import FeedProgress
from handlers import wire
from handlers.events import BlockApplied, ChainName, Error, Hello, Inbound, Welcome

if TYPE_CHECKING:
    from feeds.stream.publisher import Publisher

Messages = Callable[[Welcome], AsyncIterable[Inbound | Encoded]]
_MAINNET = "mainnet"
_YIELD_EVERY = 256  # messages, where nothing else limits the feed
NOWHERE = Welcome(
    protocol=1,
    version="",
    chain=ChainName("", ""),
    tip=None,
    points=[],
    rollback_floor=None,
    persisted_height=None,
)


class Job(Struct, frozen=True):
    """The options that all feeds share."""

    socket: Path
    network_tip: int | None
    window: int
    wait: float
    dry_run: bool
    output: Path | None
    to: int | None = None
    stream: str | None = None
    stream_replicas: int = 1

    def __post_init__(self) -> None:
        if self.stream is not None and (self.dry_run or self.output is not None):
            raise click.UsageError("--stream, --output and --dry-run exclude each other")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all feeds share."""
    for option in (
        click.option(
            "--output", type=click.Path(path_type=Path), help="Write the events to this file instead of sending them."
        ),
        click.option(
            "--stream",
            metavar="URL[,URL]",
            help="Publish the events to a stream on these NATS servers instead of sending them to a daemon.",
        ),
        click.option(
            "--stream-replicas",
            default=1,
            show_default=True,
            type=click.IntRange(1, 5),
            help="Number of servers that store the stream, if it is created.",
        ),
        click.option("--dry-run", is_flag=True, help="Decode and count the blocks without sending them."),
        click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for a daemon; 0 means no limit."),
        click.option(
            "--window",
            default=64,
            show_default=True,
            type=click.IntRange(min=1),
            help="Maximum size of unacknowledged messages in MiB.",
        ),
        click.option("--to", type=click.IntRange(min=0), metavar="HEIGHT", help="Stop after this height."),
        click.option("--network-tip", type=click.IntRange(min=0), help="Height of the network's tip."),
    ):
        command = option(command)
    return command


def refuse_overwrite(job: Job, source: Path) -> None:
    """Refuse to write over what is to be read."""
    if job.output is not None and job.output.exists() and job.output.resolve().is_relative_to(source.resolve()):
        raise click.UsageError(f"--output {job.output} is also the input of the feed")


def known_tip(job: Job, height: int | None) -> Job:
    """Return the job with a source's last block as the network's tip, where no higher one was given."""
    known = [tip for tip in (job.network_tip, height) if tip is not None]
    return replace(job, network_tip=max(known, default=None))


def run(
    job: Job,
    name: str,
    messages: Messages,
    place: Callable[[], float],
    total: float | Callable[[], float | None] | None,
    meet: Callable[[Callable[[str], None]], None] = lambda _: None,
    refused: Callable[[bytes, Error], None] | None = None,
    chain: ChainName | None = None,
    kept: Callable[[bytes, Error], None] | None = None,
) -> None:
    """Feed until the source ends, or until a signal; a failure is one clear line.

    `meet` receives the function that prints lines for the operator, for sources that have some. With `refused`
    the daemon may refuse transactions: each is reported there by its id, and the feed continues; `kept` is the same for
    withdrawals. Only a daemon that keeps `chain` is fed.
    """
    gc.set_threshold(100_000, 50, 100)  # blocks are trees without cycles
    progress = FeedProgress(name, place, total)
    meet(progress.show)
    with one_line_errors(), progress:
        try:
            work = partial(_feed, job, messages, progress, refused, kept, chain)
            anyio.run(until_stopped, progress, work, backend_options={"use_uvloop": True})
        except KeyboardInterrupt:
            raise click.Abort from None


def network_of(job: Job, family: str, chosen: str | None, known: Collection[str] | None = None) -> str:
    """Return the network of a feed: the chosen one, else the daemon's; `mainnet` without a daemon of its family.

    Raises:
        FeedError: the daemon stayed away for too long, or the feed does not support the daemon's network.
    """
    if chosen is not None:
        return chosen
    if job.dry_run or job.output is not None or job.stream is not None:
        return _MAINNET
    welcome = anyio.run(_greet, job)
    if welcome is None:  # stopped by a signal while it waited
        raise click.exceptions.Exit(0)
    kept = welcome.chain
    if kept.family != family:  # which takes any chain, or will be refused
        return _MAINNET
    if known is not None and kept.network not in known:
        raise FeedError(f"the daemon keeps {family}/{kept.network}; this feed supports {', '.join(known)}")
    return kept.network


async def _greet(job: Job) -> Welcome | None:
    """Return the daemon's Welcome; None when stopped by a signal before it has answered."""

    def show(line: str) -> None:
        click.echo(line, err=True)

    with anyio.CancelScope() as leaving:
        if threading.current_thread() is threading.main_thread():
            _stop_on_signals(leaving, lambda: show(f"waiting for the daemon on {job.socket}"))
        return await Link(job.socket, patience_s=job.wait or float("inf"), notice=show).arrive()
    return None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what ends a feed into one clear line."""
    try:
        yield
    except FeedError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


async def until_stopped(progress: FeedProgress, work: Callable[[], Awaitable[None]]) -> None:
    """Work, and end in order on a signal: files are closed, and the next feed continues from the daemon's tip."""
    with anyio.CancelScope() as leaving:
        if threading.current_thread() is threading.main_thread():  # only that thread receives signals
            _stop_on_signals(leaving, lambda: progress.show(progress.summary()))
        await work()


def _stop_on_signals(leaving: anyio.CancelScope, show: Callable[[], None]) -> None:
    """React to signals until the loop closes; one that is ignored at the start, as by nohup, stays so."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, leaving.cancel)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, show)


async def _feed(
    job: Job,
    messages: Messages,
    progress: FeedProgress,
    refused: Callable[[bytes, Error], None] | None,
    kept: Callable[[bytes, Error], None] | None,
    chain: ChainName | None,
) -> None:
    if job.dry_run or job.output is not None:
        async with _closing(messages(NOWHERE)) as source:
            await _keep(job.output, _decoded(source), progress)
        return
    if job.stream is not None:
        from feeds.stream.leading import publish

        if chain is None:
            raise FeedError("--stream needs the chain of the events: give --chain FAMILY/NETWORK")

        async def once(publisher: Publisher) -> None:
            async with _closing(messages(await publisher.arrive())) as source:
                await publisher.feed(_decoded(source))

        await publish(
            once,
            job.stream,
            chain,
            replicas=job.stream_replicas,
            network_height=job.network_tip,
            window_bytes=job.window << 20,
            patience_s=job.wait or float("inf"),
            notice=progress.show,
            acknowledged=progress.count,
        )
        return
    link = Link(
        job.socket,
        chain=chain,
        network_height=job.network_tip,
        window_bytes=job.window << 20,
        patience_s=job.wait or float("inf"),
        notice=progress.show,
        acknowledged=lambda sent, status: progress.count(status, sent.height),
        refused=refused,
        kept=kept,
    )
    async with _closing(messages(await link.arrive())) as source:
        await link.feed(source)


@asynccontextmanager
async def _closing(
    messages: AsyncIterable[Inbound | Encoded],
) -> AsyncIterator[AsyncIterable[Inbound | Encoded]]:
    """Let a source close what it holds open, however the feed ends."""
    try:
        yield messages
    finally:
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()


async def _decoded(messages: AsyncIterable[Inbound | Encoded]) -> AsyncIterator[Inbound]:
    async for message in messages:
        yield wire.decode(message.body, "frames") if isinstance(message, Encoded) else message


async def _keep(path: Path | None, messages: AsyncIterable[Inbound], progress: FeedProgress) -> None:
    """Write messages to a file, or only count them."""
    if path is None:
        async for message in messages:
            await _count(message, progress, "decoded")
        return
    on_stdout = str(path) == "-"
    try:
        with sys.stdout.buffer if on_stdout else path.open("wb") as file:
            async for message in messages:
                if not isinstance(message, Hello):
                    file.write(wire.encode(message, "json"))
                await _count(message, progress, "written")
    except OSError as error:  # of a write: what is read names its file
        error.filename = error.filename or ("standard output" if on_stdout else path)
        raise


async def _count(message: Inbound, progress: FeedProgress, status: str) -> None:
    if isinstance(message, Hello):  # only a daemon reads it
        return
    progress.count(status, message.height if isinstance(message, BlockApplied) else None)
    if isinstance(message, BlockApplied):
        progress.transactions += len(message.txs)
    if progress.counts[status] % _YIELD_EVERY == 0:
        await checkpoint()
