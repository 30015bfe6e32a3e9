"""Checks of combinations of settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from config.settings import Config, Recovery
from config.units import format_size, parse_endpoint

_UNIX_PATH_BYTES = 107  # sun_path of Linux, without the closing zero
_SHORTEST_ATTEMPT_S = 10.0
_HANDLER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*|[^\s:]+")
_HOST = re.compile(r"\*|[A-Za-z0-9._-]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*")  # a name, or an address


class Problem(NamedTuple):
    """Settings, by dotted name, that contradict each other, and what to do about it."""

    names: tuple[str, ...]
    what: str


def unmined_retention(config: Config) -> int:
    """Return after how many blocks the parents of an unmined transaction are preserved."""
    chosen = config.pruner.unmined_retention
    return config.transactions.block_height_retention // 2 if chosen is None else chosen


def problems(config: Config) -> list[Problem]:
    """Return every combination of values that cannot work, although each value is valid by itself."""
    found: list[Problem] = []
    storage = config.storage
    if storage.map_size > storage.max_map_size:
        sizes = f"{format_size(storage.map_size)} is more than max_map_size, {format_size(storage.max_map_size)}"
        found.append(Problem(("storage.map_size", "storage.max_map_size"), f"map_size {sizes}"))
    found += _retention(config)
    found += recovery_problems(config.recovery)
    found += _wallets(config)
    for host in config.http.allowed_hosts:
        if not _HOST.fullmatch(host):
            what = f'{host}: expected a name such as utxod.example.org, without scheme and port, or "*"'
            found.append(Problem(("http.allowed_hosts",), what))
    found += _facades(config)
    found += _shards(config)
    found += _shard(config)
    listen = parse_endpoint(config.http.listen)
    sockets = [("socket.path", config.socket.path)]
    sockets += [(name, where) for name, where in listeners(config).items() if isinstance(where, Path)]
    for name, path in sockets:
        if path is not None and len(bytes(path)) > _UNIX_PATH_BYTES:
            found.append(Problem((name,), f"a Unix socket's path has at most {_UNIX_PATH_BYTES} bytes: {path}"))
    if config.http.workers and config.socket.path is not None and listen == config.socket.path:
        found.append(Problem(("http.listen", "socket.path"), f"http.listen and socket.path are both {listen}"))
    return found


def listeners(config: Config) -> dict[str, Path | tuple[str, int]]:
    """Return where HTTP is spoken, by the settings that report it; the first is our own interface."""
    listens = {"http.listen": config.http.listen}
    facades = (("kupo", config.kupo), ("blockfrost", config.blockfrost), ("ogmios", config.ogmios))
    listens |= {f"{name}.listen": facade.listen for name, facade in facades if facade.enabled and facade.listen}
    return {name: parse_endpoint(listen) for name, listen in listens.items()}


def _facades(config: Config) -> list[Problem]:
    """Return what keeps facades from answering."""
    found: list[Problem] = []
    facades = {"kupo": config.kupo.enabled, "blockfrost": config.blockfrost.enabled, "ogmios": config.ogmios.enabled}
    if config.chain.family != "cardano":
        names = (name for name, enabled in facades.items() if enabled)
        what = 'needs chain.family = "cardano"'
        found += [Problem((f"{name}.enabled", "chain.family"), f"{name} {what}") for name in names]
    known = dict[Path | int, str]()
    for name, where in listeners(config).items():
        key = where if isinstance(where, Path) else where[1]
        if key in known:
            what = f"{known[key]} and {name} must listen on different ports or sockets: both have {key}"
            found.append(Problem((name, known[key]), what))
        known.setdefault(key, name)
    upstream = config.upstream.ogmios
    if upstream is not None and not upstream.startswith(("ws://", "wss://")):
        found.append(Problem(("upstream.ogmios",), "expected ws://host:port or wss://host:port"))
    return found


def _shard(config: Config) -> list[Problem]:
    """Return what a daemon with a part of the outputs cannot do."""
    if config.cluster.shard is None:
        return []
    fault = config.cluster.shard_fault
    found = [Problem(("cluster.shard",), fault)] if fault is not None else []
    wallets = [name for name in ("electrum", "esplora") if getattr(config, name).enabled]
    what = "needs all outputs, not those of a shard"
    return found + [Problem((f"{name}.enabled", "cluster.shard"), f"{name} {what}") for name in wallets]


def _shards(config: Config) -> list[Problem]:
    """Return what keeps a gateway from finding its shards."""
    found: list[Problem] = []
    for url in config.cluster.shards:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
            found.append(Problem(("cluster.shards",), f"{url}: expected http://host:port"))
    if doubled := sorted({url for url in config.cluster.shards if config.cluster.shards.count(url) > 1}):
        found.append(Problem(("cluster.shards",), f"{doubled[0]} is listed more than once"))
    return found


def _wallets(config: Config) -> list[Problem]:
    """Return what keeps the protocols of Bitcoin wallets from answering."""
    electrum, found, index = config.electrum, list[Problem](), config.utxo.index
    for name in (each for each in ("electrum", "esplora") if getattr(config, each).enabled):
        enabled = f"{name}.enabled"
        if config.chain.family != "bitcoin":
            found.append(Problem((enabled, "chain.family"), f'{name} needs chain.family = "bitcoin"'))
        if not index.history:
            found.append(Problem((enabled, "utxo.index.history"), f"{name} needs utxo.index.history = true"))
        if not index.address_hash:
            found.append(Problem((enabled, "utxo.index.address_hash"), f"{name} needs utxo.index.address_hash = true"))
    if not electrum.enabled:
        return found
    if electrum.tls_listen is not None and (electrum.certificate is None or electrum.private_key is None):
        found.append(Problem(("electrum.tls_listen",), "tls_listen needs certificate and private_key"))
    for name in ("listen", "tls_listen"):
        where = getattr(electrum, name)
        if where is not None and isinstance(parse_endpoint(where), Path):
            found.append(Problem((f"electrum.{name}",), "Electrum clients connect by TCP: expected host:port"))
    upstream = config.upstream.bitcoin
    if upstream is not None and not upstream.startswith(("http://", "https://")):
        found.append(Problem(("upstream.bitcoin",), "expected http://user:password@host:port"))
    return found


def recovery_problems(recovery: Recovery) -> list[Problem]:
    """Return the same of the recovery service alone."""
    found: list[Problem] = []
    if recovery.enabled and recovery.store == "postgresql" and recovery.dsn is None:
        found.append(Problem(("recovery.store",), 'store = "postgresql" needs dsn, the database URL'))
    if recovery.dsn is not None and not recovery.dsn.startswith(("postgresql://", "postgres://")):
        found.append(Problem(("recovery.dsn",), "expected postgresql://user@host/database"))
    if 0 < recovery.attempt_timeout < _SHORTEST_ATTEMPT_S:
        found.append(Problem(("recovery.attempt_timeout",), "expected 0 (no limit) or at least 10s"))
    if recovery.node_url is not None and not recovery.node_url.startswith(("http://", "https://")):
        found.append(Problem(("recovery.node_url",), "expected http://host:port"))
    for name in recovery.handlers:
        if not _HANDLER.fullmatch(name):
            what = f"{name!r}: expected package.module:Class, or the name of an entry point"
            found.append(Problem(("recovery.handlers",), what))
    return found


def _retention(config: Config) -> list[Problem]:
    """Check that parents of unmined transactions are preserved before they are deleted, and for longer."""
    retention = config.transactions.block_height_retention
    if not (config.pruner.enabled and config.transactions.enabled and retention):
        return []
    found: list[Problem] = []
    if unmined_retention(config) >= retention:
        found.append(
            Problem(
                ("pruner.unmined_retention", "transactions.block_height_retention"),
                f"unmined_retention, {unmined_retention(config)} blocks, must be less than "
                f"block_height_retention, {retention}; otherwise parents are deleted before they are preserved",
            )
        )
    if config.pruner.parent_preservation_blocks <= retention:
        found.append(
            Problem(
                ("pruner.parent_preservation_blocks", "transactions.block_height_retention"),
                f"parent_preservation_blocks, {config.pruner.parent_preservation_blocks}, must be more than "
                f"block_height_retention, {retention}; otherwise preservation has no effect",
            )
        )
    return found
