"""A stand-in for an Ogmios server of a node: protocol parameters, submitted transactions, fixed budgets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import cbor2
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from formats.cbor import skip


def ada(lovelace: int) -> dict[str, Any]:
    return {"ada": {"lovelace": lovelace}}


PARAMETERS: dict[str, Any] = {
    "minFeeCoefficient": 44,
    "minFeeConstant": ada(155381),
    "minFeeReferenceScripts": {"range": 25600, "base": 15.0, "multiplier": 1.2},
    "minUtxoDepositCoefficient": 4310,
    "minUtxoDepositConstant": ada(0),
    "maxBlockBodySize": {"bytes": 90112},
    "maxBlockHeaderSize": {"bytes": 1100},
    "maxTransactionSize": {"bytes": 16384},
    "maxReferenceScriptsSize": {"bytes": 204800},
    "stakeCredentialDeposit": ada(2000000),
    "stakePoolDeposit": ada(500000000),
    "stakePoolRetirementEpochBound": 18,
    "desiredNumberOfStakePools": 500,
    "stakePoolPledgeInfluence": "3/10",
    "monetaryExpansion": "3/1000",
    "treasuryExpansion": "1/5",
    "minStakePoolCost": ada(170000000),
    "scriptExecutionPrices": {"memory": "577/10000", "cpu": "721/10000000"},
    "maxExecutionUnitsPerTransaction": {"memory": 14000000, "cpu": 10000000000},
    "maxExecutionUnitsPerBlock": {"memory": 62000000, "cpu": 20000000000},
    "maxValueSize": {"bytes": 5000},
    "collateralPercentage": 150,
    "maxCollateralInputs": 3,
    "version": {"major": 9, "minor": 0},
    "plutusCostModels": {"plutus:v1": [*range(166)], "plutus:v2": [*range(175)], "plutus:v3": [*range(251)]},
    "stakePoolVotingThresholds": dict.fromkeys(("noConfidence", "hardForkInitiation"), "51/100")
    | {"constitutionalCommittee": {"default": "51/100", "stateOfNoConfidence": "51/100"}}
    | {"protocolParametersUpdate": {"security": "51/100"}},
    "delegateRepresentativeVotingThresholds": dict.fromkeys(("noConfidence", "treasuryWithdrawals"), "67/100")
    | {"constitutionalCommittee": {"default": "67/100", "stateOfNoConfidence": "3/5"}}
    | {"constitution": "3/4", "hardForkInitiation": "3/5"}
    | {
        "protocolParametersUpdate": dict.fromkeys(("network", "economic", "technical"), "67/100")
        | {"governance": "3/4"}
    },
    "constitutionalCommitteeMinSize": 3,
    "constitutionalCommitteeMaxTermLength": 365,
    "governanceActionLifetime": 30,
    "governanceActionDeposit": ada(100000000000),
    "delegateRepresentativeDeposit": ada(500000000),
    "delegateRepresentativeMaxIdleTime": 20,
}
_FIRST, _SECOND = ({"time": {"seconds": n * 86_400}, "slot": n * 4_320, "epoch": n} for n in (0, 1))
ERAS = [  # shaped as Ogmios shapes them
    {
        "start": _FIRST,
        "end": _SECOND,
        "parameters": {"epochLength": 4_320, "slotLength": {"milliseconds": 20_000}, "safeZone": 864},
    },
    {
        "start": _SECOND,
        "end": None,
        "parameters": {"epochLength": 86_400, "slotLength": {"milliseconds": 1_000}, "safeZone": 25_920},
    },
]
TREASURY, RESERVES = 1_000_000_000_000, 14_000_000_000_000_000
EVALUATED = [
    {"validator": {"index": 0, "purpose": "spend"}, "budget": {"memory": 1700, "cpu": 476468}},
    {"validator": {"index": 1, "purpose": "withdraw"}, "budget": {"memory": 5, "cpu": 7}},
]


PURPOSES = ("spend", "mint", "publish", "withdraw", "vote", "propose")


def budgets(raw: bytes) -> list[dict[str, Any]]:
    """Return a budget for each redeemer of a transaction, in either form."""
    redeemers = cbor2.loads(raw)[1].get(5, [])
    pairs = redeemers.keys() if isinstance(redeemers, dict) else [each[:2] for each in redeemers]
    budget = EVALUATED[0]["budget"]
    return [{"validator": {"index": index, "purpose": PURPOSES[tag]}, "budget": budget} for tag, index in pairs]


class Node:
    """The requests to the stand-in, the transactions that it accepted, and those that it should refuse."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.taken: dict[str, bytes] = {}
        self.refuses: dict[str, Any] | None = None
        self.accounts: dict[str, Any] = {}
        self.evaluated: list[dict[str, Any]] = EVALUATED  # nothing: a budget for each redeemer
        self._ready, self._stop = threading.Event(), asyncio.Event()

    def methods(self) -> list[str]:
        return [each["method"] for each in self.requests]

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        params = request.get("params") or {}
        match request["method"]:
            case "queryLedgerState/protocolParameters":
                return {"result": PARAMETERS}
            case "submitTransaction" | "evaluateTransaction" if self.refuses is not None:
                return {"error": self.refuses}
            case "submitTransaction":
                raw = bytes.fromhex(params["transaction"]["cbor"])
                body = raw[1 : skip(raw, 1)]
                txid = blake2b(body, digest_size=32).hexdigest()
                self.taken[txid] = raw
                return {"result": {"transaction": {"id": txid}}}
            case "evaluateTransaction":
                return {"result": self.evaluated or budgets(bytes.fromhex(params["transaction"]["cbor"]))}
            case "queryLedgerState/rewardAccountSummaries":
                return {"result": self.accounts}
            case "queryLedgerState/eraSummaries":
                return {"result": ERAS}
            case "queryLedgerState/treasuryAndReserves":
                return {"result": {"treasury": ada(TREASURY), "reserves": ada(RESERVES)}}
            case "queryLedgerState/epoch":
                return {"result": 13}
            case method:
                return {"error": {"code": -32601, "message": f"no method {method}"}}

    async def _serve(self, client: ServerConnection) -> None:
        try:
            async for raw in client:
                request = json.loads(raw)
                self.requests.append(request)
                about = {"jsonrpc": "2.0", "method": request["method"], "id": request.get("id")}
                await client.send(json.dumps(about | self._answer(request)))
        except ConnectionClosed:
            pass

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with serve(self._serve, "127.0.0.1", 0, compression=None, close_timeout=0.1) as listening:
            self.url = f"ws://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}"
            self._ready.set()
            await self._stop.wait()

    def start(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


@contextmanager
def node() -> Iterator[Node]:
    """Yield a stand-in."""
    made = Node()
    made.start()
    try:
        yield made
    finally:
        made.stop()
