"""The methods of the Electrum protocol, 1.4 to 1.6 and those on outputs: from parameters to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from daemon import VERSION
from daemon.wallets.electrum import transactions
from daemon.wallets.electrum.parameters import checkpoint_height, count, raw_bytes, script_key, transaction_id
from daemon.wallets.electrum.subscriptions import output_topic
from daemon.wallets.errors import BAD_REQUEST, RpcFault, bad_params
from daemon.wallets.later import Later, then

if TYPE_CHECKING:
    from daemon.wallets.electrum.session import Session

Method = Callable[["Session", Sequence[Any]], object]
"""Returns a result, or a `Later` if it has to wait; bytes are JSON already."""

OLDEST, NEWEST = (1, 4), (1, 6)
SOFTWARE = f"utxod {VERSION}"
MAX_HEADERS = 2016

# --- server -------------------------------------------------------------------------------------------------------


def server_version(session: Session, params: Sequence[Any]) -> object:
    """Agree on a version; further parameters are ignored."""
    wanted = params[1] if len(params) > 1 else "1.4"
    low, high = wanted if isinstance(wanted, list) and len(wanted) == 2 else (wanted, wanted)
    agreed = min(_version(high), NEWEST)
    if agreed < max(_version(low), OLDEST):
        raise RpcFault(BAD_REQUEST, f"unsupported protocol version: {wanted}; this server has 1.4 to 1.6")
    if session.version not in (None, agreed):
        raise RpcFault(BAD_REQUEST, "server.version was called before, with another version")
    session.version = agreed
    return [SOFTWARE, _dotted(agreed)]


def _version(text: object) -> tuple[int, int]:
    parts = text.split(".") if isinstance(text, str) else []
    if not 1 <= len(parts) <= 4 or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise bad_params(f"{text!r} is not a protocol version, such as 1.4")
    return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def server_features(session: Session, _: Sequence[Any]) -> object:
    """Return what this server is."""
    return {
        "hosts": {},
        "pruning": None,
        "server_version": SOFTWARE,
        "protocol_min": _dotted(OLDEST),
        "protocol_max": _dotted(NEWEST),
        "genesis_hash": session.server.genesis_hash,
        "hash_function": "sha256",
        "services": [],
        "history_from_height": session.server.chain.first_height(),
    }


def server_ping(_: Session, __: Sequence[Any]) -> object:
    """Keep the connection open."""
    return None


def server_banner(session: Session, _: Sequence[Any]) -> object:
    """Return a text for the wallet's user."""
    return session.server.banner


def server_donation_address(_: Session, __: Sequence[Any]) -> object:
    """Return no address."""
    return ""


def server_peers(_: Session, __: Sequence[Any]) -> object:
    """Return no peers."""
    return []


def server_add_peer(_: Session, __: Sequence[Any]) -> object:
    """Accept no peers."""
    return False


# --- headers ------------------------------------------------------------------------------------------------------


def headers_subscribe(session: Session, _: Sequence[Any]) -> object:
    """Return the last header, and report each new one."""
    session.wants_headers = True
    return session.server.tip_header()


def block_header(session: Session, params: Sequence[Any]) -> object:
    """Return a header, with a proof up to a checkpoint if one is given."""
    height, checkpoint = count(params[0], "height"), checkpoint_height(params, 1)
    found = session.server.chain.headers(height, 1)
    if not found:
        raise RpcFault(BAD_REQUEST, f"there is no block of height {height}")
    if not checkpoint:
        return found[0].hex()
    proof = session.server.backend.header_proof
    return partial(_with_proof, {"header": found[0].hex()}, partial(proof, height, checkpoint))


def block_headers(session: Session, params: Sequence[Any]) -> object:
    """Return headers one after the other: joined before 1.6, a list since then."""
    start, wanted = count(params[0], "start_height"), min(count(params[1], "count"), MAX_HEADERS)
    checkpoint = checkpoint_height(params, 2)
    found = session.server.chain.headers(start, wanted)
    answer: dict[str, object] = {"count": len(found), "max": MAX_HEADERS}
    if session.speaks((1, 6)):
        answer["headers"] = [header.hex() for header in found]
    else:
        answer["hex"] = b"".join(found).hex()
    if checkpoint and found:
        proof = session.server.backend.header_proof
        return partial(_with_proof, answer, partial(proof, start + len(found) - 1, checkpoint))
    return answer


async def _with_proof(answer: dict[str, object], proof: Later[dict[str, object]]) -> object:
    return answer | await proof()


# --- scripts ------------------------------------------------------------------------------------------------------


def get_history(session: Session, params: Sequence[Any]) -> object:
    """Return the transactions of a script."""
    return then(session.server.chain.history(script_key(params[0])), session.ahead.received)


def get_mempool(session: Session, params: Sequence[Any]) -> object:
    """Return the unconfirmed transactions of a script."""
    return session.server.chain.in_mempool(script_key(params[0]))


def get_balance(session: Session, params: Sequence[Any]) -> object:
    """Return the sums of a script."""
    return session.server.chain.balance(script_key(params[0]))


def list_unspent(session: Session, params: Sequence[Any]) -> object:
    """Return the unspent outputs of a script."""
    return session.server.chain.unspent(script_key(params[0]))


def scripthash_subscribe(session: Session, params: Sequence[Any]) -> object:
    """Return the status of a script, and report each change of it."""
    return session.server.subscriptions.subscribe(session, script_key(params[0]))


def scripthash_unsubscribe(session: Session, params: Sequence[Any]) -> object:
    """Report a script no longer; return whether it was subscribed to."""
    return session.server.subscriptions.remove(session, script_key(params[0]))


# --- outputs: of the drafted 1.7, answered in every version ---------------------------------------------------------


def outpoint_status(session: Session, params: Sequence[Any]) -> object:
    """Return where an output was created and spent."""
    return session.server.chain.outpoint_status(*_output(params))


def outpoint_subscribe(session: Session, params: Sequence[Any]) -> object:
    """Return where an output was created and spent, and report each change of it."""
    return session.server.subscriptions.subscribe(session, output_topic(*_output(params)))


def outpoint_unsubscribe(session: Session, params: Sequence[Any]) -> object:
    """Report an output no longer; return whether it was subscribed to."""
    return session.server.subscriptions.remove(session, output_topic(*_output(params)))


def _output(params: Sequence[Any]) -> tuple[bytes, int]:
    """Return an output; its script, which a client may add, is not needed here."""
    if len(params) > 2 and params[2] is not None:
        raw_bytes(params[2], "a locking script")
    return transaction_id(params[0]), count(params[1], "txout_idx")


# Each method, with the least and the largest number of parameters.
METHODS: dict[str, tuple[Method, int, int]] = {
    "server.version": (server_version, 0, 100),
    "server.features": (server_features, 0, 0),
    "server.ping": (server_ping, 0, 100),
    "server.banner": (server_banner, 0, 0),
    "server.donation_address": (server_donation_address, 0, 0),
    "server.peers.subscribe": (server_peers, 0, 0),
    "server.add_peer": (server_add_peer, 1, 1),
    "blockchain.headers.subscribe": (headers_subscribe, 0, 0),
    "blockchain.block.header": (block_header, 1, 2),
    "blockchain.block.headers": (block_headers, 2, 3),
    "blockchain.scripthash.get_history": (get_history, 1, 1),
    "blockchain.scripthash.get_mempool": (get_mempool, 1, 1),
    "blockchain.scripthash.get_balance": (get_balance, 1, 1),
    "blockchain.scripthash.listunspent": (list_unspent, 1, 1),
    "blockchain.scripthash.subscribe": (scripthash_subscribe, 1, 1),
    "blockchain.scripthash.unsubscribe": (scripthash_unsubscribe, 1, 1),
    "blockchain.outpoint.get_status": (outpoint_status, 2, 3),
    "blockchain.outpoint.subscribe": (outpoint_subscribe, 2, 3),
    "blockchain.outpoint.unsubscribe": (outpoint_unsubscribe, 2, 2),
    "blockchain.transaction.get": (transactions.transaction_get, 1, 2),
    "blockchain.transaction.get_merkle": (transactions.transaction_get_merkle, 2, 2),
    "blockchain.transaction.id_from_pos": (transactions.transaction_id_from_pos, 2, 3),
    "blockchain.transaction.broadcast": (transactions.transaction_broadcast, 1, 1),
    "blockchain.transaction.broadcast_package": (transactions.transaction_broadcast_package, 1, 2),
    "blockchain.estimatefee": (transactions.estimate_fee, 1, 2),
    "blockchain.relayfee": (transactions.relay_fee, 0, 0),
    "mempool.get_fee_histogram": (transactions.fee_histogram, 0, 0),
    "mempool.get_info": (transactions.mempool_info, 0, 0),
}
