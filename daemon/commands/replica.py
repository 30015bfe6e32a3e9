"""`utxod replica`: the process that follows a stream of events."""

from __future__ import annotations

import click

from daemon.commands.common import FAILED, Exit
from daemon.commands.service import one_failure, service


@click.command(hidden=True)
@click.option("--parent", type=int, required=True, help="The process that started this one.")
def replica(parent: int) -> None:
    """Feed the daemon that started this process from the stream of `cluster.stream`."""
    from daemon.http.worker import inherited
    from feeds.errors import FeedError

    with service(lambda: inherited(parent)) as config:
        try:
            with one_failure():
                from daemon.replica import serve

                serve(config)
        except FeedError as error:
            raise Exit(str(error), FAILED) from error
