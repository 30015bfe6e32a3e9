"""Large submissions: each is decoded and created in many turns, and blocks are applied between these turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter
from msgspec import Struct

from handlers import large_submission, orders
from handlers.chain import Chain
from handlers.delivery import Answer, Delivery, acknowledge, refuse
from handlers.events import TxSubmitted
from handlers.eviction import room_for
from handlers.large_submission import Outline
from handlers.refusal import Refusal, Refused, no_room
from handlers.spending import TxFault
from handlers.submission import create_large
from handlers.thread import on_thread
from handlers.transactions import TxView
from storage.errors import StoreFull

_T = TypeVar("_T")


class Large(Struct, frozen=True):
    """A large transaction, in the place of its answer: it is created in commits of its own."""

    delivery: Delivery
    event: TxSubmitted | Outline
    txid: bytes


async def create(large: Large, chain: Chain, writer: CapacityLimiter) -> list[Answer]:
    """Create a large transaction, each step a turn of its own; return its answers."""
    delivery, event, seq = large.delivery, large.event, None
    assert chain.tx_blocks is not None
    tx_blocks, transactions, height = chain.tx_blocks, chain.tx_blocks.transactions, chain.height

    async def write(step: Callable[[TxView], _T]) -> _T:
        return await on_thread(chain.write_alone, step, limiter=writer)

    async def turn(step: Callable[[], _T]) -> _T:
        return await on_thread(step, limiter=writer)

    async def put_blob(name: str, raw: bytes) -> None:
        await on_thread(transactions.blobs.put, name, raw)

    try:
        event = await large_submission.whole(event, turn) if isinstance(event, Outline) else event
        seq = event.seq
        evicted = await room_for(event, tx_blocks.evictor, write)
        status = await create_large(tx_blocks, event, height, write, put_blob)
    except Refused as refused:
        return refuse(delivery, delivery.seq(), refused.refusal)
    except TxFault as fault:
        return refuse(delivery, seq, orders.refusal(fault))
    except StoreFull as full:
        return refuse(delivery, seq, no_room(full))
    finally:
        transactions.on_their_way.discard(large.txid)
        if isinstance(event, TxSubmitted):
            await large_submission.free(event.tx.outputs, turn)
    if status is None:
        unfinished = "it is stored completely, but its outputs cannot be spent yet: send it again"
        return refuse(delivery, seq, Refusal("store_full", unfinished, retryable=True))
    return acknowledge(delivery, seq, status, chain.tip, evicted=evicted)
