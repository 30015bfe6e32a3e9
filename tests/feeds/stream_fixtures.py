"""A node with 30 blocks, its RPC server, and a NATS server, for tests of streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import RpcServer, serving
from jetstream import Server, servers


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(30)


@pytest.fixture
def rpc(node: FakeNode) -> Iterator[RpcServer]:
    with serving(node) as server:
        yield server


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Server]:
    with servers(tmp_path) as (server,):
        yield server
