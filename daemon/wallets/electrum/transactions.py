"""The methods about transactions and fees."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from daemon.wallets.electrum.parameters import count, flag, raw_bytes, transaction_id
from daemon.wallets.errors import BAD_REQUEST, NODE_ERROR, RpcFault, bad_params
from daemon.wallets.later import then
from daemon.wallets.upstream import Upstream
from formats.merkle import MerkleTree
from storage.errors import StoreError

if TYPE_CHECKING:
    from daemon.wallets.chain import ChainView
    from daemon.wallets.electrum.session import Session

log = structlog.get_logger("wallets")

_MAX_PACKAGE = 25
_MODES = ("CONSERVATIVE", "ECONOMICAL")


def transaction_get(session: Session, params: Sequence[Any]) -> object:
    """Return the bytes of a transaction, or with `verbose` the node's object."""
    txid, verbose = transaction_id(params[0]), flag(params, 1, "verbose")
    if verbose:
        return partial(session.server.upstream.described_transaction, txid, session.server.chain.locate(txid))
    session.ahead.used()
    known = session.server.upstream.cached(txid)
    return partial(_fetched, session, txid) if known is None else _in_hex(known)


async def _fetched(session: Session, txid: bytes) -> bytes:
    """Return the bytes of a transaction from the node, and read those that are expected next with it."""
    upstream, chain = session.server.upstream, session.server.chain
    if expected := session.ahead.with_others(txid):
        await prefetch(chain, upstream, expected)
    known = await upstream.prefetched(txid)
    return _in_hex(await upstream.raw_transaction(txid, chain.locate(txid)) if known is None else known)


async def prefetch(chain: ChainView, upstream: Upstream, expected: dict[bytes, int]) -> None:
    """Read transactions of histories, with their heights, that a client is expected to request."""
    await upstream.prefetch(chain.hashes_of_blocks(expected))


async def prefetch_early(chain: ChainView, upstream: Upstream, expected: dict[bytes, int]) -> None:
    """Read transactions before the client requests them. If that fails, the request itself reports it."""
    try:
        await prefetch(chain, upstream, expected)
    except (RpcFault, StoreError) as error:
        log.debug("transactions_not_prefetched", transactions=len(expected), error=str(error))
    except Exception:  # all clients continue
        log.exception("transactions_not_prefetched", transactions=len(expected))


def _in_hex(raw: bytes) -> bytes:
    return b'"%b"' % hexlify(raw)


def transaction_get_merkle(session: Session, params: Sequence[Any]) -> object:
    """Return the merkle branch of a transaction."""
    txid, height = transaction_id(params[0]), count(params[1], "height")

    def proof(tree: MerkleTree) -> object:
        position = tree.position(txid)
        if position is None:
            raise RpcFault(BAD_REQUEST, f"transaction {txid.hex()} is not in block {height}")
        return {"block_height": height, "merkle": [each.hex() for each in tree.branch(position)], "pos": position}

    return then(session.server.backend.tree_of_block(height), proof)


def transaction_id_from_pos(session: Session, params: Sequence[Any]) -> object:
    """Return the id of the transaction at a position of a block, with its merkle branch if requested."""
    height, position = count(params[0], "height"), count(params[1], "tx_pos")
    merkle = flag(params, 2, "merkle")

    def found(tree: MerkleTree) -> object:
        if position >= len(tree):
            raise RpcFault(BAD_REQUEST, f"block {height} has {len(tree)} transactions, but none at position {position}")
        txid = tree.id_at(position).hex()
        return {"tx_hash": txid, "merkle": [each.hex() for each in tree.branch(position)]} if merkle else txid

    return then(session.server.backend.tree_of_block(height), found)


def transaction_broadcast(session: Session, params: Sequence[Any]) -> object:
    """Submit a transaction to the node."""
    return partial(_broadcast, session, raw_bytes(params[0], "raw_tx"))


async def _broadcast(session: Session, raw: bytes) -> str:
    txid = await session.server.upstream.broadcast(raw)
    session.server.backend.poll_now()
    return txid.hex()


def transaction_broadcast_package(session: Session, params: Sequence[Any]) -> object:
    """Submit transactions that depend on each other to the node at once."""
    package = params[0]
    if not isinstance(package, list) or not 1 <= len(package) <= _MAX_PACKAGE:
        raise bad_params(f"a package must be a list of 1 to {_MAX_PACKAGE} transactions")
    verbose = flag(params, 1, "verbose")
    raws = [raw_bytes(each, f"transaction {n} of the package") for n, each in enumerate(package)]
    return partial(_broadcast_package, session, raws, verbose=verbose)


async def _broadcast_package(session: Session, raws: list[bytes], *, verbose: bool) -> object:
    answer = await session.server.upstream.call("submitpackage", [raw.hex() for raw in raws])
    session.server.backend.poll_now()
    if verbose:
        return answer
    results = answer.get("tx-results") if isinstance(answer, dict) else None
    if not isinstance(results, dict) or not all(isinstance(each, dict) for each in results.values()):
        raise RpcFault(NODE_ERROR, "the node answered submitpackage with a value that has no results of transactions")
    errors = [
        {"txid": each.get("txid"), "error": each["error"]} for each in results.values() if each.get("error") is not None
    ]
    success = answer.get("package_msg") == "success"
    return {"success": success, **({"errors": errors} if errors else {})}


# --- fees ---------------------------------------------------------------------------------------------------------


def estimate_fee(session: Session, params: Sequence[Any]) -> object:
    """Return a fee rate in BTC for 1,000 virtual bytes, -1 without an estimate."""
    blocks = count(params[0], "number")
    mode = params[1] if len(params) > 1 and params[1] is not None else _MODES[0]
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise bad_params(f"mode must be {' or '.join(_MODES)}")
    return session.server.upstream.fee_rate(min(max(blocks, 1), 1008), mode.upper())


def relay_fee(session: Session, _: Sequence[Any]) -> object:
    """Return the lowest fee rate that the node relays."""
    return partial(session.server.upstream.relay_fee)


def fee_histogram(session: Session, _: Sequence[Any]) -> object:
    """Return how many virtual bytes wait at which fee rate."""
    return session.server.chain.mempool.fee_histogram()


def mempool_info(session: Session, _: Sequence[Any]) -> object:
    """Return the fee rates below which the node takes no transactions, in BTC for 1,000 virtual bytes."""
    return partial(_mempool_info, session.server.upstream)


async def _mempool_info(upstream: Upstream) -> object:
    answer = await upstream.call("getmempoolinfo")
    known = answer if isinstance(answer, dict) else {}
    relay = known.get("minrelaytxfee") or await upstream.relay_fee()
    return {
        "mempoolminfee": known.get("mempoolminfee", relay),
        "minrelaytxfee": relay,
        "incrementalrelayfee": known.get("incrementalrelayfee", relay),
    }
