"""`utxod wallets`: the protocols of Bitcoin wallets."""

from __future__ import annotations

import click

from daemon.commands.common import config_option, store_errors
from daemon.commands.service import one_failure, service


@click.command()
@config_option
@click.option("--parent", type=int, hidden=True, help="The process that started this one.")
@click.pass_context
def wallets(context: click.Context, parent: int | None) -> None:
    """Serve Bitcoin wallets over the Electrum protocol and the Esplora API, next to a running daemon.

    `utxod run` starts the same process if electrum.enabled or esplora.enabled is set.
    """
    from daemon.http.worker import inherited

    read = (lambda: context.obj.config) if parent is None else (lambda: inherited(parent))
    with service(read) as config, store_errors(), one_failure():
        from daemon.wallets.worker import serve

        serve(config)
