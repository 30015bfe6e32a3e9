"""Checks for common problems around a daemon: each one checks one thing and gives advice."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from socket import AF_UNIX, socket
from urllib.parse import urlsplit

import anyio
import msgspec

from config.settings import Config
from daemon import machine
from daemon.child import answer_of_child, run_in_child
from daemon.commands.status import ask
from daemon.crash import refuse_after_crash
from daemon.machine import Finding
from daemon.store import folder, open_disk, open_query, open_store
from feeds.bitcoin.access import Login, NodeAway, NodeError, read_url
from feeds.bitcoin.jsonrpc import Node
from storage.errors import StoreError
from storage.precheck import refuse_incomplete

_OLD_S = {"bitcoin": 3 * 3600.0, "cardano": 900.0}
_UNITS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_PATIENCE_S = 5.0
_LONGEST_ANSWER = 1 << 20


def examine(config: Config, path: Path, node: str | None) -> Iterator[Finding]:
    """Yield what the checks find; `node` is the URL of a node; without it the configured one is used."""
    checks: list[Callable[[], Finding]] = [
        machine.python,
        machine.libraries,
        lambda: machine.clock(config),
        machine.open_files,
        lambda: machine.data_folder(config),
        lambda: machine.space(config),
        lambda: machine.fsync(config),
        lambda: _store(config),
        lambda: _map(config),
        lambda: _socket(config, path),
        lambda: _last_block(config, path),
        lambda: _node(config, node),
        _unit,
    ]
    for check in checks:
        try:
            yield check()
        except OSError as error:
            yield Finding("system", "wrong", f"{error.filename or 'a check'}: {error.strerror or error}")


def _store(config: Config) -> Finding:
    """Whether the store can be opened, by a child: a damaged one may end a process."""

    def read() -> None:
        refuse_incomplete(config.data_dir)
        refuse_after_crash(folder(config))
        with open_disk(config, readonly=True) as disk:
            open_store(disk, config)

    if not (folder(config) / "data.mdb").exists() and not (config.data_dir / "restoring").exists():
        return Finding("store", "ok", "there is none yet")
    try:
        run_in_child(read)
    except StoreError as error:
        return Finding("store", "wrong", str(error), getattr(error, "advice", "see docs/operate.md, Exit codes"))
    return Finding("store", "ok", f"{folder(config)} can be opened")


def _map(config: Config) -> Finding:
    path, most = folder(config) / "data.mdb", config.storage.max_map_size
    used = path.stat().st_size if path.exists() else 0
    detail, limit = f"{used / most:.0%} of storage.max_map_size are used", resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < max(config.storage.map_size, used) * 2:
        return Finding(
            "map",
            "wrong",
            f"a process may have {limit:,} bytes",
            "remove the limit of the address space (ulimit -v, LimitAS=)",
        )
    if used > most * 0.9:
        return Finding("map", "wrong", detail, "raise storage.max_map_size: at its end blocks are refused")
    return Finding("map", "ok", detail)


def _socket(config: Config, path: Path) -> Finding:
    if not path.exists():
        return Finding("socket", "warning", f"{path}: no daemon runs", "utxod run, or systemctl start utxod")
    if not os.access(path, os.W_OK):
        return Finding("socket", "wrong", f"{path}: not for this user", "usermod -aG utxod USER, and log in again")
    welcome, problem = ask(path)
    if welcome is None:
        stale = _refuses(path)
        advice = "no daemon uses it: start a daemon, which replaces it" if stale else "journalctl -u utxod"
        return Finding("socket", "wrong", f"{path}: {problem}", advice)
    kept, wanted = (welcome.chain.family, welcome.chain.network), (config.chain.family, config.chain.network)
    if kept != wanted:
        return Finding("socket", "wrong", f"{path}: a daemon of {'/'.join(kept)}", "check --config and --socket")
    return Finding("socket", "ok", f"{path}: version {welcome.version} answers")


def _refuses(path: Path) -> bool:
    """Return whether no process listens on a socket that is there."""
    with socket(AF_UNIX) as knock:
        try:
            knock.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _last_block(config: Config, path: Path) -> Finding:
    """How old the latest block is; a child reads the store."""

    def read() -> bytes:
        with open_query(config) as query, query.snapshot() as shot:
            block = query.store.block_at(shot.txn, shot.state.tip) if shot.state.tip else None
            return msgspec.json.encode(None if block is None else (block.height, block.time))

    advice = "start a feed: utxod feed --help"
    if not (folder(config) / "data.mdb").exists():
        return Finding("last block", "warning", "there is none yet", advice)
    try:
        found = msgspec.json.decode(answer_of_child(read), type=tuple[int, int | None] | None)
    except StoreError:  # another check reports the reason
        return Finding("last block", "warning", "not known: the store cannot be read")
    if found is None:
        return Finding("last block", "warning", "there is none yet", advice)
    height, made = found
    if made is None:
        return Finding("last block", "ok", f"height {height:,}, which has no time")
    age = time.time() - made
    if age <= _OLD_S.get(config.chain.family, 24 * 3600.0):
        return Finding("last block", "ok", f"height {height:,}, {age / 60:,.0f} min old")
    welcome, _ = ask(path)
    fed = welcome is not None and welcome.feeder_away_s == 0
    advice = "wait until it has caught up" if fed else "no feed is connected: see its log, or start one"
    return Finding("last block", "warning", f"height {height:,}, {age / 3600:,.1f} h old", advice)


def _node(config: Config, url: str | None) -> Finding:
    url = url or config.recovery.node_url or config.upstream.ogmios
    if url is None:
        return Finding("node", "ok", "none is configured (--node URL)")
    try:
        detail = _ogmios(url) if url.startswith(("ws://", "wss://")) else _bitcoin(config, url)
    except (NodeAway, NodeError, ValueError, OSError, HTTPException) as error:
        return Finding(
            "node", "wrong", str(error) or type(error).__name__, "start it, or correct its address, user and password"
        )
    return Finding("node", "ok", detail)


def _bitcoin(config: Config, url: str) -> str:
    address, in_url = read_url(url, 8332)
    node = Node(address, Login(in_url, config.recovery.node_cookie), longest=_LONGEST_ANSWER, timeout_s=_PATIENCE_S)

    async def height() -> object:
        try:
            with anyio.fail_after(_PATIENCE_S * 2):
                return await node.call("getblockcount")
        except TimeoutError:
            raise NodeAway(f"{address}: no answer in {_PATIENCE_S * 2:g} s") from None
        finally:
            node.close()

    return f"{address} is at height {anyio.run(height):,}"


def _ogmios(url: str) -> str:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "wss" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 1337), timeout=_PATIENCE_S)
    place = f"{parts.scheme}://{parts.hostname}:{connection.port}"
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
    except (OSError, HTTPException) as error:
        raise NodeAway(f"{place}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status >= 500:
        raise NodeAway(f"{place}: it answers {answer.status}: not connected to its node")
    return f"{place} answers {answer.status}"


def _unit() -> Finding:
    if not Path("/run/systemd/system").is_dir():
        return Finding("unit", "ok", "systemd does not run here")
    for place in _UNITS:
        if (Path(place) / "utxod.service").exists():
            return Finding("unit", "ok", f"{place}/utxod.service")
    return Finding("unit", "warning", "utxod.service is not installed", "systemd/install.sh, see docs/service.md")
