"""The facades that are served. The modules of a disabled facade are not imported."""

from __future__ import annotations

from starlette.types import ASGIApp

from config.settings import Config
from daemon.http import facade
from daemon.http.app import Site
from handlers.transactions import Transactions


def prefix_of(listener: str, config: Config) -> str:
    """Return the prefix of the paths of requests on a listener; `listener` is the setting that names it."""
    name = listener.partition(".")[0]
    if name == "blockfrost":
        return f"/blockfrost/{config.chain.network}"
    return "" if name == "http" else f"/{name}"


def mount(site: Site, config: Config, transactions: Transactions | None, app: ASGIApp) -> ASGIApp:
    """Return an application with the facades that are switched on."""
    shared = facade.Site(
        query=site.query,
        codec=site.codec,
        windows=site.windows,
        daemon_link=site.daemon_link,
        transactions=transactions,
        config=config,
        turns=site.turns,
    )
    mounted: list[facade.Mounted] = []
    if config.kupo.enabled:
        from daemon.http.kupo import app as kupo

        mounted.append(kupo.mounted(shared))
    if config.blockfrost.enabled:
        from daemon.http.blockfrost import app as blockfrost

        mounted.append(blockfrost.mounted(shared))
    if config.ogmios.enabled:
        from daemon.http.ogmios import app as ogmios

        mounted.append(ogmios.mounted(shared))
    return facade.Mount(app, mounted) if mounted else app
