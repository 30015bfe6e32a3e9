"""Responses that need the node. No snapshot is held during the query."""

from __future__ import annotations

from typing import Any

from daemon.http.blockfrost.network import Chain, parameters, seconds
from daemon.http.blockfrost.outputs import Outputs
from daemon.http.blockfrost.requests import not_found
from daemon.http.facade import Site
from daemon.http.upstream import Upstream
from handlers.query import Sum


class FromNode:
    """Queries the node, and adds what the store has."""

    def __init__(self, site: Site, chain: Chain, outputs: Outputs, upstream: Upstream) -> None:
        self._query, self._turns = site.query, site.turns
        self._chain, self._outputs, self._upstream = chain, outputs, upstream

    async def parameters(self, _: list[str]) -> dict[str, Any]:
        """Return the protocol parameters."""
        with self._query.snapshot() as shot:
            tip = shot.tip()
        if self._chain.network is None or tip is None:
            raise not_found()
        epoch = self._chain.network.epoch(tip.slot)
        return parameters(await self._upstream.protocol_parameters(epoch), epoch)

    async def network(self, _: list[str]) -> dict[str, Any]:
        """Return the supply of the network, as far as the node reports it; 404 without a node."""
        genesis = self._chain.genesis
        if not self._upstream.is_set or genesis is None:
            raise not_found()
        pots = await self._upstream.call("queryLedgerState/treasuryAndReserves")
        reserves, most = pots["reserves"]["ada"]["lovelace"], genesis["max_lovelace_supply"]
        return {
            "supply": {
                "max": most,
                "total": str(int(most) - reserves),
                "circulating": None,
                "locked": None,
                "treasury": str(pots["treasury"]["ada"]["lovelace"]),
                "reserves": str(reserves),
            },
            "stake": {"live": None, "active": None},
        }

    async def eras(self, _: list[str]) -> list[dict[str, Any]]:
        """Return the eras of the chain; 404 without a node."""
        with self._query.snapshot() as shot:
            tip = shot.tip()
        if not self._upstream.is_set or tip is None:
            raise not_found()
        return [
            {
                "start": _bound(era["start"]),
                "end": _bound(era["end"]) if era.get("end") else _horizon(era, tip.slot),
                "parameters": {
                    "epoch_length": era["parameters"]["epochLength"],
                    "slot_length": seconds(era["parameters"]["slotLength"]["milliseconds"] / 1000),
                    "safe_zone": era["parameters"]["safeZone"] or 0,
                },
            }
            for era in await self._upstream.call("queryLedgerState/eraSummaries")
        ]

    async def account(self, args: list[str]) -> dict[str, Any]:
        """Return an account as the node has it, with its outputs from the store; 404 without a node."""
        text, total = args[0], Sum()
        with self._query.snapshot() as shot:
            where = self._outputs.account(shot, text)
            if not self._upstream.is_set:
                raise not_found()
            for so_far in shot.balance(where):
                total = so_far
                await self._turns.next()
                shot.check_age()
        key = where[1].hex()
        requested = {"scripts" if text.startswith(("stake17", "stake_test17")) else "keys": [key]}
        found = (await self._upstream.call("queryLedgerState/rewardAccountSummaries", requested)) or {}
        if isinstance(found, list):  # since Ogmios 6.12
            account = next((each for each in found if each.get("credential") == key), None)
        else:
            account = found.get(key)
        if account is None:
            raise not_found()
        pool = account.get("delegate") or account.get("stakePool") or {}
        rewards = account["rewards"]["ada"]["lovelace"]
        return {
            "stake_address": text,
            "active": bool(pool),
            "registered": True,
            "active_epoch": None,
            "controlled_amount": str(total.value + rewards),
            "rewards_sum": None,
            "withdrawals_sum": None,
            "reserves_sum": None,
            "treasury_sum": None,
            "withdrawable_amount": str(rewards),
            "pool_id": pool.get("id"),
            "drep_id": (account.get("delegateRepresentative") or {}).get("id"),
        }


def _bound(bound: dict[str, Any]) -> dict[str, Any]:
    return {"time": bound["time"]["seconds"], "slot": bound["slot"], "epoch": bound["epoch"]}


def _horizon(era: dict[str, Any], tip: int) -> dict[str, Any]:
    """Return up to where an era lasts at least: the end of the epoch in which the safe zone after the tip ends."""
    start, given = _bound(era["start"]), era["parameters"]
    length, ms = given["epochLength"], given["slotLength"]["milliseconds"]
    slots = max(tip + 1 + (given["safeZone"] or 0) - start["slot"], 1)
    epochs = -(-slots // length)
    return {
        "time": start["time"] + epochs * length * ms // 1000,
        "slot": start["slot"] + epochs * length,
        "epoch": start["epoch"] + epochs,
    }
