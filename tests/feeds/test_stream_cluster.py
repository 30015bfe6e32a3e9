"""Three NATS servers, feeders and replicas: one chain, whatever is killed, paused, cut off or lost."""

from __future__ import annotations

from pathlib import Path

from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import serving
from jetstream import headers, moves, servers, url_of
from patience import until
from streams import REGTEST, assert_follow, feeder, replicas


def test_a_cluster_of_three_survives_any_server(tmp_path: Path) -> None:
    node = FakeNode(30)
    with serving(node) as rpc, servers(tmp_path, 3) as made:
        url = url_of(made)
        with feeder(tmp_path / "f", rpc, url, "--stream-replicas", "3"), replicas(tmp_path, url) as daemons:
            assert_follow(daemons, node)
            for server in made:
                server.kill()
                node.mine(2)
                assert_follow(daemons, node)
                server.start()
                until(server.ready, within_s=60)
        assert moves(headers(url, REGTEST)) == [("BlockApplied", height) for height in range(node.height + 1)]
