"""The peers: scripts that apply the same chain, each in a separate process, and the chain in their formats."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgpack  # type: ignore[import-untyped]
import msgspec

from bench import raw
from bench.old_outputs import OldSet
from bench.workload import Chain, read_blocks
from feeds.bitcoin.block import double_sha256
from handlers.events import BlockApplied

LIVE = "PostgreSQL, spends checked"
SCRIPTS = {
    "postgresql": {LIVE: ["peer_pg_live.py", "on"]},
    "sqlite": {"SQLite": ["peer_sql.py", "yaci", "normal"]},
    "electrumx": {
        "ElectrumX, live": ["peer_electrumx.py", "live"],
        "ElectrumX, initial sync": ["peer_electrumx.py", "sync"],
    },
}
_ELECTRUMX = ("e-x", "plyvel", "msgpack")
_FIGURES = {  # ours, and what the peers call them
    "txs_per_s": "txs_per_s",
    "outs_per_s": "outs_per_s",
    "block_p50_ms": "blk_p50_ms",
    "block_p99_ms": "blk_p99_ms",
    "block_longest_ms": "blk_max_ms",
    "written_mb": "MB_written",
    "store_mb": "MB_db",
    "peak_rss_mb": "rss_MB",
    "rollback_10_ms": "reorg10_ms",
    "unspent": "utxos",
}


class NotMeasured(Exception):
    """A peer cannot run here."""


class Peers:
    """The scripts in `folder`, which work in `work` on the chain in `chain`."""

    def __init__(self, folder: Path, work: Path, chain: Path) -> None:
        self._folder = folder
        self._work = work
        self._chain = chain
        self._impossible: NotMeasured | None = None  # why there is no ElectrumX; it is not tried twice

    def run(self, script: str, *arguments: str) -> dict[str, Any]:
        """Run one and return what it measured.

        Raises:
            NotMeasured: it needs what cannot be installed.
            ClickException: it failed.
        """
        command = [sys.executable, str(self._folder / script)]
        if script == "peer_electrumx.py":
            own = Path(__file__).with_name("electrumx_parts.py")
            python = self._electrumx()
            command = [str(python), "-P", str(own), str(self._folder / script)]  # without our modules next to it
        environ = _environment(self._work) | {"CHAIN": str(self._chain)}
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environ, check=False)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
        if line is None:
            raise click.ClickException(f"{script} measured nothing: {done.stderr.strip()[-500:]}")
        found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
        figures = {ours: found[theirs] for ours, theirs in _FIGURES.items() if theirs in found}
        figures["peak_rss_mb"] = found.get("pg_rss_sum_MB", found["rss_MB"])
        return figures

    def _electrumx(self) -> Path:
        if self._impossible:
            raise self._impossible
        try:
            return electrumx(self._work / "electrumx")
        except NotMeasured as error:
            self._impossible = error
            raise


def electrumx(home: Path) -> Path:
    """Return the interpreter of an environment with ElectrumX, made if it is not there.

    Raises:
        NotMeasured: it cannot be made.
    """
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists():
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_ELECTRUMX]
        for command in ([sys.executable, "-m", "venv", "--clear", str(home)], install):
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                why = (ran.stderr.strip() or ran.stdout.strip()).rpartition("\n")[2]
                raise NotMeasured(f"{', '.join(_ELECTRUMX)} cannot be installed in {home}: {why}")
        done.touch()
    return python


def _environment(work: Path) -> dict[str, str]:
    runtime = work / "runtime"
    runtime.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "BENCH_WORK": str(work), "XDG_RUNTIME_DIR": str(runtime)}


# --- the chain ---------------------------------------------------------------------------------------------------


def generated(peers: Path, work: Path, blocks: int, txs: int) -> Path:
    """Return the folder of the peers' own chain, made if it is not there."""
    folder = work / f"chain-{blocks}-{txs}"
    if not (folder / "meta.json").exists():
        command = [sys.executable, str(peers / "gen.py"), "--out", str(folder)]
        command += ["--blocks", str(blocks), "--txs", str(txs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment(work))
    return folder


def with_old(folder: Path, old: OldSet, upper: Chain) -> Path:
    """Write an old set, and the chain on top of it, as the peers read a chain; return its folder.

    `folder` has the same chain without the old set. Its first block stays the first, because ElectrumX requests it.
    """
    target = folder.with_name(f"{folder.name}-on-old")
    measured, behind = upper.blocks[upper.warm :], 1 + old.height + upper.warm
    meta = {
        "blocks": behind + len(measured),
        "full_from": behind,
        "txs": behind + sum(len(block.txs) for block in measured),  # peers subtract one for each block before
        "outs": sum(len(tx.outputs) for block in measured for tx in block.txs),
        "ins": sum(len(tx.inputs) for block in measured for tx in block.txs),
        "params": {"blocks": len(measured), "seed_outs": 0, "warm": 0},  # these they subtract from `outs`
        "made_from": [upper.name, msgspec.structs.asdict(old)],
    }
    known = target / "meta.json"
    if known.exists() and json.loads(known.read_text()) == meta:
        return target
    target.mkdir(exist_ok=True)
    known.unlink(missing_ok=True)
    with (folder / "chain.bin").open("rb") as file:
        first = file.read(*struct.unpack("<I", file.read(4)))
    with (target / "chain.bin").open("wb") as raws, (target / "chain.mp").open("wb") as events:
        as_raw = _Raw(first)
        raws.write(struct.pack("<I", len(first)) + first)
        events.write(_packed(next(read_blocks(folder))))
        for block in chain(old.blocks(), upper.blocks):
            content = as_raw.block(block)
            raws.write(struct.pack("<I", len(content)) + content)
            events.write(_packed(block))
    known.write_text(json.dumps(meta))
    return target


class _Raw:
    """Turns events into blocks of Bitcoin's serialization, whose hashes and ids follow from what is in them."""

    def __init__(self, first: bytes) -> None:
        self._before = double_sha256(first[:80])
        self._height = self._places = 0
        self._renamed = dict[bytes, bytes]()  # ids of events that are not those of the serialization

    def block(self, block: BlockApplied) -> bytes:
        """Return the next block."""
        self._height += 1
        raws, txids = list[bytes](), list[bytes]()
        for tx in block.txs:
            inputs = [(self._renamed.get(txid, txid), index) for txid, index in tx.inputs]
            raws.append(raw.transaction(inputs, tx.outputs, self._places))
            txids.append(double_sha256(raws[-1]))
            self._places += 1
            if txids[-1] != tx.txid:
                self._renamed[tx.txid] = txids[-1]
        content, self._before = raw.block(self._before, self._height, raws, txids)
        return content


def _packed(block: BlockApplied) -> bytes:
    txs = [
        {"txid": tx.txid, "inputs": tx.inputs, "outputs": [(made.address, made.value) for made in tx.outputs]}
        for tx in block.txs
    ]
    event = {"height": block.height, "hash": block.hash, "prev": block.prev_hash or bytes(32), "txs": txs}
    packed: bytes = msgpack.packb(event, use_bin_type=True)
    return packed
