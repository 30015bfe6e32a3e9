"""Three NATS servers, two feeders and two replicas: one chain, whatever is killed, paused, cut off or lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import serving
from daemons import Daemon
from jetstream import Server, holder, leader, servers, url_of
from patience import until
from streams import REGTEST, Feeder, assert_follow, assert_one_chain, feeder, replicas, root
from tcp_proxy import Proxy, proxies


class Cluster:
    """All processes; one feeder and one replica are connected through proxies."""

    def __init__(self, folder: Path, open_: ExitStack) -> None:
        self.node = FakeNode(30)
        rpc = open_.enter_context(serving(self.node))
        self.servers: list[Server] = open_.enter_context(servers(folder, 3))
        self.proxies: list[Proxy] = open_.enter_context(proxies([server.port for server in self.servers]))
        self.url = url_of(self.servers)
        urls = [",".join(proxy.url for proxy in self.proxies), self.url]
        more = ("--stream-replicas", "3", "--wait", "0")
        self.feeders: list[Feeder] = []
        self.replicas: list[Daemon] = []
        for number, url in enumerate(urls):
            place = folder / f"{number}"
            self.feeders.append(open_.enter_context(feeder(place / "feeder", rpc, url, *more)))
            self.replicas += open_.enter_context(replicas(place, url, 1, utxo={"store": "mmr"}))

    def settle(self, count: int = 2) -> None:
        """Mine blocks, and wait until all replicas have them."""
        self.node.mine(count)
        assert_follow(self.replicas, self.node)

    def leader(self) -> Server:
        """Return the server that leads the stream."""
        return leader(self.servers, REGTEST)

    def publishing(self) -> Feeder:
        """Return the feeder that leads."""
        pid = until(lambda: holder(self.url, "bitcoin.regtest"))
        return next(feeder for feeder in self.feeders if feeder.process.pid == pid)

    def lead(self, feeder: Feeder) -> None:
        """Make a feeder the leading one."""
        while (publishing := self.publishing()) is not feeder:
            publishing.kill()
            self.settle()
            publishing.start()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as open_:
        yield Cluster(tmp_path_factory.mktemp("cluster"), open_)


@pytest.fixture(autouse=True)
def compared(cluster: Cluster) -> Iterator[None]:
    """Compare everything after each story."""
    cluster.settle()
    yield
    cluster.node.reorganise(3, 4)
    cluster.settle()
    assert_one_chain(cluster.url, cluster.node)
    assert len({root(daemon) for daemon in cluster.replicas}) == 1


def test_connections_are_cut(cluster: Cluster) -> None:
    for _ in range(3):
        for proxy in cluster.proxies:
            proxy.cut()
        cluster.node.mine()
        for proxy in cluster.proxies:
            proxy.mend()
        cluster.settle()


def test_connections_carry_nothing(cluster: Cluster) -> None:
    cluster.lead(cluster.feeders[0])  # its connections are concerned
    for proxy in cluster.proxies:
        proxy.hold()
    cluster.node.mine(2)
    assert_follow(cluster.replicas[1:], cluster.node)
    for proxy in cluster.proxies:
        proxy.mend()
    cluster.settle()


def test_any_server_is_killed_and_one_loses_its_disk(cluster: Cluster) -> None:
    for server in cluster.servers:
        server.kill()
        if server is cluster.servers[0]:
            server.wipe()  # what it receives again is needed when the next one is killed
        cluster.settle()
        server.start()
        until(server.ready, within_s=60)


def test_the_leading_server_is_paused(cluster: Cluster) -> None:
    server = cluster.leader()
    server.pause()
    try:
        cluster.settle()
    finally:
        server.resume()


def test_the_leading_feeder_and_a_replica_are_killed(cluster: Cluster) -> None:
    publishing, replica = cluster.publishing(), cluster.replicas[0]
    publishing.kill()
    replica.kill()
    cluster.node.mine(2)
    replica.start()
    cluster.settle()
    publishing.start()


def test_the_leading_feeder_and_the_leading_server_are_killed_together(cluster: Cluster) -> None:
    publishing, server = cluster.publishing(), cluster.leader()
    publishing.kill()
    server.kill()
    cluster.settle()
    publishing.start()
    server.start()
    until(server.ready, within_s=60)


def test_a_feeder_that_was_paused_does_not_disturb(cluster: Cluster) -> None:
    publishing = cluster.publishing()
    cluster.node.mine(20)
    publishing.process.send_signal(signal.SIGSTOP)
    try:
        cluster.settle()
        cluster.node.reorganise(2, 5)
        cluster.settle()
    finally:
        publishing.process.send_signal(signal.SIGCONT)
