"""Exports, verification and answers hold no read transaction for long, however slowly their output is read."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

import anyio
from chains import LEAVES, credential, feed, open_chain, wallet
from chains import at as made_at
from chains import block as made_block
from chains import output as paid
from chains import tx as made_tx
from daemons import PATIENCE_S, Daemon, running
from patience import until
from questions import Web
from reader_processes import BlockFeed, children, filled, process, table, utxod
from scenarios import address, back_to, block, output, tx

from daemon.http.app import Site, build
from daemon.http.daemon_link import DaemonLink
from handlers.addresses import codec
from handlers.query import Query
from storage.disk import Disk
from storage.history.mmr import Born
from storage.history.verify import verify
from storage.readers import Reader
from storage.rows import BlockRow

SEVERAL = 30_000  # outputs, that an export reads in more than one snapshot
MANY = 300_000  # that a verify walks in some hundred milliseconds


def test_an_export_whose_block_is_rolled_back_fails(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client("frames") as client:
        blocks = filled(client, SEVERAL)
        with process(*utxod(daemon, "export"), ready=False) as export:
            assert export.stdout is not None and export.stderr is not None
            os.read(export.stdout.fileno(), 1)
            assert client.ask(back_to(blocks[-2]))["status"] == "rolled_back"
            export.stdout.read()
            name = blocks[-1]["hash"].hex()
            why = f"incomplete: block {len(blocks)} {name}, at which this began, was rolled back meanwhile: start again"
            assert export.stderr.read().decode() == f"Error: {why}\n" and export.wait(PATIENCE_S) == 1


@contextmanager
def slowly(pid: int, pause_s: float = 0.1) -> Iterator[Callable[[], None]]:
    """Yield a step that lets a stopped process run for a few milliseconds; once it has ended, a step does nothing."""

    def send(number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def step() -> None:
        sleep(pause_s)
        send(signal.SIGCONT)
        sleep(0.005)
        send(signal.SIGSTOP)

    send(signal.SIGSTOP)
    try:
        yield step
    finally:
        send(signal.SIGCONT)


@contextmanager
def walking(daemon: Daemon) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a quick verify and the child that walks for it, in the middle of the walk of some hundred milliseconds."""
    with table(daemon) as readers:
        for _ in range(20):
            with process(*utxod(daemon, "verify", "--quick"), ready=False) as verify:
                seen, child = 0, 0
                while verify.poll() is None and seen < 5:  # to look at the format takes no time
                    child = next(iter(children(verify.pid)), 0)
                    seen = seen + 1 if child in {reader.pid for reader in readers()} else 0
                    sleep(0.001)
                if verify.poll() is None:
                    yield verify, child
                    return
    raise AssertionError("no walk was met")


def test_a_quick_verify_that_takes_too_long_gives_advice(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client("frames") as client:
        turning = BlockFeed(client, filled(client, MANY)[-1])
        daemon.configure(store={"max_reader_age": "300ms"})
        with walking(daemon) as (verify, child):
            with slowly(child) as step:
                turning.until(lambda: (step(), verify.poll())[1], lambda code: code is not None)
            assert verify.returncode == 1 and verify.stderr is not None
            assert b"and was ended: omit --quick, so that a copy is read" in verify.stderr.read()


def test_a_command_whose_reader_was_killed_names_the_daemon(tmp_path: Path) -> None:
    with running(tmp_path, store={"max_reader_age": "300ms"}) as daemon, daemon.client("frames") as client:
        turning = BlockFeed(client, filled(client, MANY)[-1])
        with walking(daemon) as (verify, child):
            os.kill(child, signal.SIGSTOP)
            turning.until(verify.poll, lambda code: code is not None)
            assert verify.returncode == 1 and verify.stderr is not None
            assert b"ended by SIGKILL: the daemon kills a stopped reader" in verify.stderr.read()
        (line,) = [line for line in daemon.log_lines() if line["event"] == "reader_killed"]
        assert line["pid"] == child and line["age_s"] >= 0.45
        with table(daemon) as readers:
            until(readers, lambda slots: child not in {slot.pid for slot in slots})


def test_verify_reads_the_store_only_to_copy_it(tmp_path: Path) -> None:
    """Walks take minutes on a large store, so they read the copy; `quick` is the exception."""
    first = made_block(None, made_tx("O", *(paid("ann", n) for n in range(30))))
    with open_chain(tmp_path / "lmdb", store="mmr") as chain:
        feed(chain, first, made_block(first, made_tx("P", paid("bob"), spends=[made_at("O")])))
        disk, open_while_walking, looked_at = chain.store.disk, list[list[Reader]](), list[Path]()

        class Watching:
            def leaves(self, block: BlockRow, born: Born) -> list[bytes]:
                open_while_walking.append(disk.readers())
                return LEAVES.leaves(block, born)

        def also(seen: Disk) -> list[str]:
            looked_at.append(seen.folder)
            return []

        for quick in (False, True):
            assert verify(disk, quick=quick, also=also, leaves=Watching()) == []
            assert open_while_walking and all(bool(readers) == quick for readers in open_while_walking)
            assert (looked_at[-1] == disk.folder) == quick
            open_while_walking.clear()


def test_clients_that_never_read_hold_no_snapshot(tmp_path: Path) -> None:
    http = {"workers": 1, "listen": f"unix:{tmp_path}/http"}
    with ExitStack() as unread, running(tmp_path, http=http) as daemon, daemon.client("frames") as client:
        rich = [output("rich", n + 1) for n in range(3000)]
        turning = BlockFeed(client, block(None, tx("rich", *rich)))
        assert turning.tip is not None and client.ask(turning.tip)["status"] == "applied"
        path = f"/api/v1/addresses/{address('rich').hex()}/utxos?count=1000"
        with Web(tmp_path / "http") as web:
            assert len(web.ask(path).content) > 1 << 18, "more than a socket holds"
        for _ in range(20):
            asking = unread.enter_context(socket.socket(socket.AF_UNIX))
            asking.connect(str(tmp_path / "http"))
            asking.sendall(f"GET {path} HTTP/1.1\r\nHost: utxod\r\n\r\n".encode() * 5)
        with table(daemon) as readers:
            for _ in range(10):  # a snapshot may be met while an answer is made; it does not stay
                met = set(readers())
                turning.until(lambda met=met: not met.intersection(readers()))  # type: ignore[misc]


def test_an_answer_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    """Its snapshot grows old while other answers take turns: a balance, and a page with a filter."""
    policy, name = credential("policy"), b"name"
    first = made_block(None, made_tx("a", *(paid("ann", n, assets=[(policy, name, 1)]) for n in range(5000))))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        text = codec("cardano", "mainnet")
        query, tip = Query(chain.store, text, "cardano"), first
        site = Site(query, text, chain.windows, DaemonLink(tmp_path / "nobody"), "store", 60, lambda: b"")
        app = build(site, None)

        async def receive() -> MutableMapping[str, Any]:  # a block comes with every turn
            nonlocal tip
            feed(chain, tip := made_block(tip))
            await anyio.sleep_forever()
            raise AssertionError("nobody hangs up")

        def ask(path: str, query_string: bytes = b"") -> tuple[int, Any]:
            sent = list[MutableMapping[str, Any]]()

            async def send(message: MutableMapping[str, Any]) -> None:
                sent.append(message)

            async def both() -> None:
                async with anyio.create_task_group() as tasks:
                    if query_string:
                        tasks.start_soon(receive)
                    await app(scope, receive, send)
                    tasks.cancel_scope.cancel()

            scope = {"type": "http", "method": "GET", "path": path, "query_string": query_string, "headers": []}
            anyio.run(both)
            return sent[0]["status"], json.loads(sent[1]["body"])

        balance = f"/api/v1/addresses/{wallet('ann').hex()}/balance"
        search = f"/api/v1/addresses/{wallet('ann').hex()}/utxos", b"count=1000&asset=" + (policy + name).hex().encode()
        assert ask(balance)[1]["utxo_count"] == 5000 and len(ask(*search)[1]) == 1000
        chain.store.disk.max_reader_age = 0.0
        for question in ((balance,), search):
            status, why = ask(*question)
            assert (status, why["error"]) == (503, "snapshot_expired") and "store.max_reader_age" in why["message"]
        with chain.store.disk.read():
            pass
        assert chain.store.disk.readers() == []
