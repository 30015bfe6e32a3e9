"""More clients than a worker takes on: health is answered, and connections that were idle longest are closed first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import pytest
from daemons import PATIENCE_S, environment, home
from patience import until
from questions import Web, free_port, short_folder
from raw_http import Connection, Server, exchange, get, serving
from reader_processes import children
from scenarios import address, block, digest, output, tx

from daemon.http.capacity import Capacity, Limits
from daemon.http.reply import Few, Problem
from daemon.metrics import Served
from daemon.turns import Turns

ANN = f"/api/v1/addresses/{address('ann').hex()}"
CROWD = 20_000
LARGE = block(None, tx("large", *(output("ann", 1) for _ in range(CROWD))))
HOLD = """
import socket, sys
port, count, source = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
held = []
for n in range(count):
    one = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
    one.sendall([b"", b"GET /hea", b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\nX: "][n % 3])
    held.append(one)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def half_open(port: int | Path, processes: int, each: int) -> Iterator[None]:
    with ExitStack() as attackers:
        held = []
        for n in range(processes):
            command = [sys.executable, "-c", HOLD, str(port), str(each), f"127.0.0.{2 + n}"]
            one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            held.append(attackers.enter_context(one))
        for one in held:
            assert one.stdout is not None and one.stdout.readline() == b"held\n"
        yield
        for one in held:
            assert one.stdin is not None
            one.stdin.close()


def test_health_is_answered_next_to_1600_half_open_connections() -> None:
    with short_folder() as folder, serving(folder) as server:
        worker = server.worker
        with half_open(server.where, 4, 400):
            assert median(server.healthy()) < 1
            until(lambda: server.refused("evicted") >= 1600 - 1024, why="they are not counted")
            assert "http_connections_evicted" in server.daemon.events()
            with Connection(server.where) as later:  # a new client that exchange at once is answered
                later.send(get("/api/v1/status"))
                assert later.answer().status == 200
        assert server.worker == worker


def test_without_descriptors_there_are_fewer_connections() -> None:
    port = free_port()
    with short_folder() as folder, home(folder, http={"listen": f"127.0.0.1:{port}", "workers": 0}) as daemon:
        daemon.start()
        command = [sys.executable, "-m", "daemon.cli", "serve", "--config", str(daemon.config)]
        limited = ["sh", "-c", 'ulimit -n 160; exec "$0" "$@"', *command]
        with (folder / "serve.log").open("ab") as log:
            serve = subprocess.Popen(limited, env=environment(), stdout=log, stderr=log)
        try:
            with Web(port) as web:
                web.ask("/health/live")
            server = Server(daemon, port)
            [worker] = children(serve.pid)
            with half_open(port, 2, 200):
                assert median(server.healthy()) < 1
            assert "http_connections_limited" in (folder / "serve.log").read_text()
            assert children(serve.pid) == [worker]
        finally:
            serve.terminate()
            serve.wait(PATIENCE_S)


def test_the_connections_of_one_address_are_limited() -> None:
    with (
        short_folder() as folder,
        serving(folder, max_connections_per_address=5) as server,
        Connection(server.where, "127.0.0.2") as other,
        ExitStack() as many,
    ):
        ours = [many.enter_context(Connection(server.where, "127.0.0.3")) for _ in range(8)]
        assert all(one.ended() for one in ours[:3])
        for one in (other, *ours[3:]):
            one.send(get())
            assert one.answer().status == 200


def test_health_is_answered_next_to_expensive_requests() -> None:
    record = f"/api/v1/txs/{digest('tx', 'large').hex()}"
    paths = [
        record,
        f"{record}/utxos?count=1000",
        f"{ANN}/balance",
        f"{ANN}/utxos?page={CROWD - 5}&count=1",
        f"{ANN}/utxos?page=4294967295&count=1000",
        f"{ANN}/utxos?asset={'ab' * 40}&count=1000",
    ]
    with short_folder() as folder, serving(folder, [LARGE]) as server, ExitStack() as stack:
        api = [stack.enter_context(Connection(server.where)) for _ in range(60)]
        for n, connection in enumerate(api):
            connection.send(get(paths[n % len(paths)]) * 10)
        began = perf_counter()
        exchange(server.where, get("/api/v1/tip"))  # waits behind them, as health does not
        behind_s = perf_counter() - began
        assert median(server.healthy()) < min(1, behind_s / 4)
        for connection in api[: len(paths)]:
            assert connection.answer().status == 200


def test_a_worker_leaves_though_its_clients_stay() -> None:
    with short_folder() as folder, serving(folder, [LARGE]) as server, ExitStack() as stay:
        for request in (b"", b"GET /hea", get(), get(f"{ANN}/balance") * 50):
            stay.enter_context(Connection(server.where)).send(request)
        server.healthy()
        assert server.daemon.term() == 0


LIMITS = Limits(connections=6, connections_per_address=3, head_timeout_s=1, idle_timeout_s=1, send_timeout_s=1)


class Fake:
    def __init__(self, capacity: Capacity, noted: list[str], name: str, address: str | None = None) -> None:
        self.capacity, self.noted, self.name, self.address = capacity, noted, name, address
        self.finished = asyncio.Event()
        capacity.enter(self)

    def start(self) -> asyncio.Task[None]:
        self.noted.append(f"{self.name} starts")
        return asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        await self.finished.wait()

    def close_early(self, reason: str) -> None:
        self.noted.append(f"{self.name} {reason}")
        self.capacity.leave(self)

    def check(self, now: float) -> None:
        self.noted.append(f"{self.name} is checked")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_the_connection_that_waits_longest_is_closed_first() -> None:
    noted, counts = list[str](), Served()
    capacity = Capacity(LIMITS._replace(connections=7), counts)
    capacity.queue(Fake(capacity, noted, "running"))
    names = ("waiting", "sending", "late", "queued", "other", "again")
    waiting, sending, late, queued, other, again = (Fake(capacity, noted, name) for name in names)
    for client in (again, waiting, late, again):  # the last one has sent something since
        capacity.wait(client)
    capacity.unsent(sending, 5)
    for client in (queued, other):
        capacity.queue(client)
    for name in "abcdef":
        Fake(capacity, noted, name)
    assert counts.connections == 7
    capacity.leave(queued)  # a second time
    assert counts.connections == 7
    # of those with a request the last one, which would wait longest for its turn
    evicted = [f"{name} evicted" for name in ("waiting", "late", "again", "sending", "other", "queued")]
    assert noted == ["running starts", *evicted]


@pytest.mark.anyio
async def test_an_address_with_too_many_connections_loses_its_own() -> None:
    noted = list[str]()
    capacity = Capacity(LIMITS, Served())
    for name in ("other", "one", "two", "three"):
        capacity.wait(Fake(capacity, noted, name, "192.0.2.1" if name == "other" else "192.0.2.2"))
    Fake(capacity, noted, "four", "192.0.2.2")
    capacity.queue(Fake(capacity, noted, "five", "192.0.2.2"))
    capacity.queue(Fake(capacity, noted, "six", "192.0.2.2"))
    Fake(capacity, noted, "seven", "192.0.2.2")  # none of its address is idle
    limited = [f"{name} address_limit" for name in ("one", "two", "three", "seven")]
    assert noted == [*limited[:2], "five starts", *limited[2:]]


@pytest.mark.anyio
async def test_of_too_many_unread_answers_the_oldest_are_dropped() -> None:
    noted, large = list[str](), 40 << 20
    capacity = Capacity(LIMITS, Served())
    first, second, third = (Fake(capacity, noted, name) for name in ("first", "second", "third"))
    capacity.unsent(first, 1 << 30)  # alone it may be of any size
    capacity.sent(first)
    capacity.unsent(second, large)
    capacity.unsent(third, large // 2)
    assert noted == []
    capacity.unsent(first, large)
    assert noted == ["second unsent_limit"]


@pytest.mark.anyio
async def test_half_of_the_connections_are_worked_on_at_a_time() -> None:
    noted = list[str]()
    capacity = Capacity(LIMITS, Served())
    clients = [Fake(capacity, noted, str(n)) for n in range(6)]
    for client in clients:
        capacity.queue(client)
    await settle()
    assert noted == ["0 starts", "1 starts", "2 starts"]
    capacity.leave(clients[3])
    clients[1].finished.set()
    await settle()
    assert noted[3:] == ["4 starts"]
    for client in clients:
        client.finished.set()
    await settle()
    assert noted[4:] == ["5 starts"]


async def starts(count: int, *, long: bool) -> list[int]:
    """Let so many requests start; return in which iteration of the loop each was worked on."""
    iteration, started, capacity = 0, list[int](), Capacity(LIMITS._replace(connections=100), Served())

    class Asker(Fake):
        async def _run(self) -> None:
            started.append(iteration)
            if long:
                sleep(0.05)  # noqa: ASYNC251 -- an expensive answer

    for n in range(count):
        capacity.queue(Asker(capacity, [], str(n)))
    while len(started) < count:
        iteration += 1
        await asyncio.sleep(0)
    return started


@pytest.mark.anyio
async def test_requests_start_a_few_at_a_time_and_others_are_read_after_a_long_one() -> None:
    assert max(Counter(await starts(90, long=False)).values()) <= 8
    started = await starts(4, long=True)  # it takes some iterations until the request of a new connection is read
    assert all(later - earlier >= 5 for earlier, later in pairwise(started)), started


@pytest.mark.anyio
async def test_what_arrived_while_the_loop_was_held_up_is_read_before_a_client_is_closed() -> None:
    async def checked() -> None:
        give_up = monotonic() + PATIENCE_S
        while not noted:
            assert monotonic() < give_up
            await asyncio.sleep(0.01)

    noted = list[str]()
    capacity = Capacity(LIMITS, Served())
    Fake(capacity, noted, "one")
    await checked()
    noted.clear()
    sleep(0.6)  # noqa: ASYNC251 -- an expensive answer
    await settle()
    assert noted == []
    await checked()


@pytest.mark.anyio
async def test_answers_that_take_turns_go_on_one_at_a_time() -> None:
    turns, noted, iteration = Turns(), list[tuple[int, str]](), 0

    async def work(name: str) -> None:
        for _ in range(3):
            await turns.next()
            noted.append((iteration, name))

    tasks = [asyncio.create_task(work(name)) for name in "abcd"]
    while not all(task.done() for task in tasks):
        iteration += 1
        await asyncio.sleep(0)
        if iteration == 4:
            tasks[3].cancel()
    assert [name for _, name in noted if name != "d"] == [*"abc"] * 3
    assert len({iteration for iteration, _ in noted}) == len(noted)


def test_a_blob_store_that_does_not_answer_keeps_few_requests_waiting() -> None:
    few = Few("blob store", most=2)
    with few():
        with few(), pytest.raises(Problem) as refused, few():
            pass
        assert (refused.value.status, refused.value.failure.error) == (503, "overloaded")
        with few():
            pass
