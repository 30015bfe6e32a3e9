"""`utxod send`: sends single messages to the daemon and prints its answers."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import anyio
import click
from msgspec.structs import replace

from daemon.client import Line
from daemon.commands.common import FAILED, Exit, config_option, pipe_may_close, socket_option
from feeds.errors import FeedError
from feeds.files import MessageFile
from handlers import wire
from handlers.events import Ack, Error, Welcome


@click.command()
@config_option
@socket_option
@click.option("--keep-going", is_flag=True, help="Continue with the next message after one that is refused.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for an answer; 0 means no limit.",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.pass_context
def send(context: click.Context, file: str, socket: Path | None, keep_going: bool, wait: float) -> None:
    """Send the messages in FILE one by one and print each answer; - is standard input.

    FILE has JSON Lines or frames, as in docs/messages.md. Each message is sent after the answer to the previous one. A
    message without `seq` gets its number in FILE as `seq`. Answers are printed as JSON, one per line. Exits 1 if a
    message is refused.

    To feed a chain use `utxod feed file`, which resumes. To follow facts use `utxod tail`.
    """
    path = context.obj.socket(socket)
    with pipe_may_close():
        try:
            refused = anyio.run(_send, path, None if file == "-" else Path(file), keep_going, wait or None)
        except FeedError as error:
            raise Exit(str(error), FAILED) from error
        except TimeoutError as error:
            raise Exit(f"the daemon on {path} has not answered within {wait:g} s", FAILED) from error
        except OSError as error:
            raise Exit(f"no daemon answers on {path} ({error.strerror or error})", FAILED) from error
    if refused:
        raise Exit(f"the daemon refused {refused} message{'' if refused == 1 else 's'}", FAILED)


async def _send(path: Path, file: Path | None, keep_going: bool, wait_s: float | None) -> int:
    """Send messages and print the answers; return how many were refused."""
    refused = 0
    with Line(path, wait_s) as line:
        async with aclosing(MessageFile(file).messages()) as messages:
            number = 0
            async for message in messages:
                number += 1
                seq = number if message.seq is None else message.seq
                line.send(replace(message, seq=seq))
                refused += not _answered(line, seq)
                if refused and not keep_going:
                    break
    return refused


def _answered(line: Line, seq: int) -> bool:
    """Print what the daemon sends up to the answer to message `seq`; return whether it was accepted."""
    while True:
        received = line.receive()
        click.echo(wire.encode(received, "json"), nl=False)
        match received:
            case Error(seq=given) if given in {None, seq}:
                return False
            case Ack(seq=given) | Welcome(seq=given) if given == seq:
                return True
