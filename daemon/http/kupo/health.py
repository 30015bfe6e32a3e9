"""The progress of this store in the format of Kupo's health."""

from __future__ import annotations

from typing import Any

from daemon import VERSION
from daemon.http.facade import Site
from handlers.query import Snapshot
from handlers.readiness import blocks_behind, readiness

_STATUS = {"ready": 200, "behind": 202, "empty": 202}  # everything else: no feeder reports the height of the network


def health(shot: Snapshot, site: Site) -> tuple[int, dict[str, Any]]:
    """Return the status and the content of `/health`. The slot of the network's tip is known while we are at it."""
    link, tip = site.daemon_link, shot.tip()
    height = None if tip is None else tip.height
    lag = None if height is None else blocks_behind(link.network_height, height)
    found = readiness(
        daemon=link.connected,
        tip_height=height,
        lag_blocks=lag,
        feeder_away_s=link.feeder_away_s,
        grace_s=site.config.http.ready_grace,
    )
    status = _STATUS.get(found.state, 503)
    slot = None if tip is None else tip.slot
    synchronised = None
    if height is not None and link.network_height:
        synchronised = round(min(height / link.network_height, 1.0), 5)
    seconds = link.seconds_since_last_block()
    return status, {
        "connection_status": "disconnected" if status == 503 else "connected",
        "most_recent_checkpoint": slot,
        "most_recent_node_tip": slot if lag == 0 else None,
        "seconds_since_last_block": None if seconds is None else int(seconds),
        "network_synchronization": synchronised,
        "configuration": {"indexes": "installed"},
        "version": f"v2.12.0-utxod-{VERSION}",
    }


def prometheus(found: dict[str, Any]) -> bytes:
    """Return the same as metrics; unknown values have no line."""
    metrics: list[tuple[str, str, float | None]] = [
        ("connection_status", "gauge", float(found["connection_status"] == "connected")),
        ("most_recent_checkpoint", "counter", found["most_recent_checkpoint"]),
        ("most_recent_node_tip", "counter", found["most_recent_node_tip"]),
        ("network_synchronization", "gauge", found["network_synchronization"]),
        ("seconds_since_last_block", "gauge", found["seconds_since_last_block"]),
        ("configuration_indexes", "gauge", 1.0),
    ]
    known = [(f"kupo_{name}", kind, float(value)) for name, kind, value in metrics if value is not None]
    return "\n".join(f"# TYPE {name} {kind}\n{name}  {value}\n" for name, kind, value in known).encode()
