"""`utxod gateway`: the HTTP API over all shards."""

from __future__ import annotations

import click

from daemon.commands.common import FAILED, WRONG_USE, Exit, config_option
from daemon.commands.service import one_failure, service


@click.command()
@config_option
@click.option("--workers", type=click.IntRange(1, 1024), help="Number of processes; by default http.workers.")
@click.option("--inherit", type=(str, int), hidden=True, help="Listening descriptors, and whose they are.")
@click.pass_context
def gateway(context: click.Context, workers: int | None, inherit: tuple[str, int] | None) -> None:
    """Answer queries over HTTP from the shards of a chain.

    The shards are the daemons that cluster.shards lists. An answer that needs several shards is as of one block. While
    a shard does not answer, requests that need it are answered with 503, and all others as before.
    """
    from daemon.http.worker import inherited

    if inherit is not None:
        with service(lambda: inherited(inherit[1])) as config, one_failure():
            from daemon.gateway.worker import work

            work(config, [*map(int, inherit[0].split(","))], inherit[1])
        return
    with service(lambda: context.obj.config) as config, one_failure():
        from daemon.gateway.link import WrongShard
        from daemon.gateway.worker import announce, check_shards
        from daemon.http.supervisor import serve_alone

        if not config.cluster.shards:
            raise Exit("cluster.shards is empty: it lists the HTTP addresses of all shards", WRONG_USE)
        workers = workers or max(config.http.workers, 1)
        announce(config, workers)
        try:
            check_shards(config)
        except WrongShard as error:
            raise Exit(str(error), FAILED) from error
        serve_alone(config, context.obj.path, workers, "gateway")
