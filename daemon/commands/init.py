"""`utxod init`: a first configuration, from prompts on a terminal or from options."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import click

from config.load import DEFAULT_FILE, ConfigError, load
from config.show import starter
from daemon.commands.common import FAILED, WRONG_USE, Exit
from storage.files import FILE_MODE

_NETWORKS = {
    "cardano": ("mainnet", "preprod", "preview"),
    "bitcoin": ("mainnet", "testnet3", "testnet4", "signet", "regtest"),
    "raw": ("mainnet",),
}
_SCHEMES = {"bitcoin": ("http", "https"), "cardano": ("ws", "wss"), "raw": ()}
_EXAMPLES = {"bitcoin": "http://127.0.0.1:8332", "cardano": "ws://127.0.0.1:1337"}


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--family", type=click.Choice([*_NETWORKS]), help="Family of the chain.")
@click.option("--network", help="The chain's network; mainnet by default.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder for all data of the daemon.")
@click.option("--node", help="The node: http://user:password@host:port of Bitcoin, ws://host:port of Ogmios.")
@click.option("--cookie", type=click.Path(path_type=Path), help="Cookie file of a Bitcoin node, instead of a password.")
@click.option("--http", "listen", help="Listen address of the HTTP API, host:port or unix:/path.")
def init(
    file: Path | None,
    family: str | None,
    network: str | None,
    data_dir: Path | None,
    node: str | None,
    cookie: Path | None,
    listen: str | None,
) -> None:
    """Write a configuration for a chain and its node to FILE.

    On a terminal it prompts for values that are not given as options. Otherwise --family is required, and the other
    values have defaults. FILE is by default /etc/utxod/utxod.toml if it can be written, otherwise utxod.toml. An
    existing file is never overwritten.
    """
    file = file or (DEFAULT_FILE if os.access(DEFAULT_FILE.parent, os.W_OK) else Path("utxod.toml"))
    if file.exists():
        raise Exit(f"{file}: the file exists and is not overwritten: name another file", WRONG_USE)
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    if family is None:
        if not interactive:
            raise Exit("name the chain's family with --family: cardano, bitcoin or raw", WRONG_USE)
        family = str(_prompt("Family of the chain", "cardano", choice=click.Choice([*_NETWORKS])))
    network = network or (_prompt(f"Network ({', '.join(_NETWORKS[family])})", "mainnet") if interactive else "mainnet")
    place = Path("/var/lib/utxod") if file == DEFAULT_FILE else Path("utxod-data").absolute()
    data_dir = data_dir or (Path(_prompt("Data folder", str(place))) if interactive else place)
    if node is None and interactive and family in _EXAMPLES:
        node = _prompt(f"Node, as {_EXAMPLES[family]}; empty for none", "") or None
    settings = {"data_dir": str(data_dir.absolute()), "chain.family": family, "chain.network": network}
    if listen is not None:
        settings["http.listen"] = listen
    settings |= _of_node(family, node, cookie)
    _write(file, starter(settings))
    click.echo(f"{file}: written, and valid")
    click.echo("\n".join(_next_steps(file, family, node, cookie)))


def _prompt(question: str, default: str, choice: click.Choice[str] | None = None) -> str:
    return str(click.prompt(question, default=default, type=choice, err=True))


def _of_node(family: str, node: str | None, cookie: Path | None) -> dict[str, str]:
    """Return the settings that name the node.

    Raises:
        Exit: it is no URL of such a node.
    """
    if node is None:
        if cookie is not None:
            raise Exit("--cookie belongs to a node: name it with --node", WRONG_USE)
        return {}
    if urlsplit(node).scheme not in _SCHEMES[family] or not urlsplit(node).hostname:
        wanted = f"a URL like {_EXAMPLES[family]}" if family in _EXAMPLES else "no node"
        raise Exit(f"--node: expected {wanted} for the family {family}", WRONG_USE)
    if family == "cardano":
        if cookie is not None:
            raise Exit("--cookie belongs to a Bitcoin node", WRONG_USE)
        return {"upstream.ogmios": node}
    return {"recovery.node_url": node} | ({} if cookie is None else {"recovery.node_cookie": str(cookie.absolute())})


def _write(file: Path, text: str) -> None:
    """Write a valid configuration durably to a new file.

    Raises:
        Exit: it is wrong, or can't be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made, name = tempfile.mkstemp(dir=file.parent, prefix=".utxod-init-")
        try:
            with os.fdopen(made, "w") as opened:
                opened.write(text)
                opened.flush()
                os.fchmod(opened.fileno(), FILE_MODE)  # it may hold a password
                os.fsync(opened.fileno())
            load(Path(name), {})
            os.link(name, file)
        finally:
            Path(name).unlink()
    except ConfigError as error:
        raise Exit("\n".join(problem.replace(f"{name}: ", "") for problem in error.problems), WRONG_USE) from error
    except FileExistsError:
        raise Exit(f"{file}: the file exists and is not overwritten: name another file", WRONG_USE) from None
    except OSError as error:
        raise Exit(f"{file}: {error.strerror or error}", FAILED) from error


def _next_steps(file: Path, family: str, node: str | None, cookie: Path | None) -> list[str]:
    given = "" if file == DEFAULT_FILE else f" --config {file}"
    lines = ["", "Next steps:", f"  utxod run{given}"]
    if family == "bitcoin":
        shown = "URL" if node is None or "@" in node else node
        login = "" if cookie is None else f" --cookie {cookie}"
        lines.append(f"  utxod feed bitcoin-rpc {shown}{login}{given}")
    elif family == "cardano":
        lines.append(f"  utxod feed ogmios {node or 'URL'}{given}")
    else:
        lines.append(f"  utxod feed file FILE{given}")
    return [*lines, f"  utxod doctor{given}"]
