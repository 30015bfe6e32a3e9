"""The constants of a network, its epochs, and its protocol parameters with Blockfrost's names."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from daemon.http.blockfrost.requests import required
from daemon.turns import Turns
from feeds.cardano.eras import NETWORKS, Network
from feeds.cardano.genesis import read_genesis
from handlers.blocks import last_upto, sums
from handlers.query import Snapshot

_KEPT_EPOCHS = 2
_TURN = 10  # blocks that are summed before others get a turn
_SECURITY = {"mainnet": 2160, "preprod": 2160, "preview": 432}


class _Sums(NamedTuple):
    """The sums of some blocks; nothing where one of them is not known."""

    txs: int
    output: int | None
    fees: int | None


class Chain:
    """How slots count, and the ten facts of a genesis file."""

    def __init__(self, name: str, genesis: Path | None) -> None:
        if genesis is None and name in NETWORKS:
            self.network: Network | None = NETWORKS[name]
            self.genesis: dict[str, Any] | None = _known(NETWORKS[name])
        elif genesis is not None:
            self.network = read_genesis([genesis], name, 0, NETWORKS.get(name)).network
            self.genesis = _from_file(genesis, self.network)
        else:
            self.network = self.genesis = None
        self._sums: dict[bytes, tuple[int, int, _Sums]] = {}  # by the first block: up to which, its hash, the sums

    def epoch_slot(self, slot: int) -> int | None:
        """Return a slot's place in its epoch."""
        if self.network is None:
            return None
        return slot - self.first_slot(self.network.epoch(slot))

    def time(self, reported: int | None, slot: int) -> int:
        """Return the time of a block: what the feeder reported, or else when its slot began.

        Raises:
            Refused: neither is known.
        """
        found = reported if reported is not None or self.network is None else self.network.time(slot)
        return required(found, "the time of the block")

    def first_slot(self, epoch: int) -> int:
        """Return the first slot of an epoch."""
        assert self.network is not None
        network = self.network
        byron = min(epoch, network.byron_epochs) * network.byron_epoch_slots
        return byron + max(epoch - network.byron_epochs, 0) * network.epoch_slots

    async def epoch(self, shot: Snapshot, turns: Turns) -> dict[str, Any] | None:
        """Return the epoch of the tip.

        Raises:
            Refused: the feeder did not send the fees of its transactions.
        """
        tip = shot.tip()
        if tip is None or self.network is None:
            return None
        network, number = self.network, self.network.epoch(tip.slot)
        begin, end = self.first_slot(number), self.first_slot(number + 1)
        first = last_upto(shot, begin - 1) + 1 if begin else 1
        txs, output, fees = await self._sums_from(shot, turns, first)
        return {
            "epoch": number,
            "start_time": network.time(begin),
            "end_time": network.time(end),
            "first_block_time": network.time(shot.block(first).slot),
            "last_block_time": network.time(tip.slot),
            "block_count": shot.state.tip - first + 1,
            "tx_count": txs,
            "output": str(required(output, "the values of all outputs in this epoch")),
            "fees": str(required(fees, "the fees of all transactions in this epoch")),
            "active_stake": None,
        }

    async def _sums_from(self, shot: Snapshot, turns: Turns, first: int) -> _Sums:
        """Return the sums of the blocks from one on, up to the first one of which something is not known.

        What was summed before is not summed again.
        """
        key = shot.block(first).hash
        upto, total = first - 1, _Sums(0, 0, 0)
        if (known := self._sums.get(key)) is not None and known[0] <= shot.state.tip:
            last, hashed, summed = known
            if hash(shot.block(last).hash) == hashed:
                upto, total = last, summed
        for ordinal in range(upto + 1, shot.state.tip + 1):
            if None in total:
                break
            output, fees = sums(shot, ordinal)
            total = _Sums(
                total.txs + shot.stored.block(ordinal).txs, _both(total.output, output), _both(total.fees, fees)
            )
            if ordinal % _TURN == 0:
                self._keep(shot, key, ordinal, total)
                await turns.next()
                shot.check_age()
        self._keep(shot, key, shot.state.tip, total)
        return total

    def _keep(self, shot: Snapshot, key: bytes, upto: int, total: _Sums) -> None:
        if key not in self._sums and len(self._sums) >= _KEPT_EPOCHS:
            self._sums.clear()
        self._sums[key] = upto, hash(shot.block(upto).hash), total


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _known(network: Network) -> dict[str, Any]:
    return _genesis(network, 0.05, 5, 45_000_000_000_000_000, 129_600, 62, _SECURITY[network.name])


def _genesis(
    network: Network, active: float, quorum: int, supply: int, kes_slots: int, kes_evolutions: int, security: int
) -> dict[str, Any]:
    return {
        "active_slots_coefficient": active,
        "update_quorum": quorum,
        "max_lovelace_supply": str(supply),
        "network_magic": network.magic,
        "epoch_length": network.epoch_slots,
        "system_start": network.start,
        "slots_per_kes_period": kes_slots,
        "slot_length": seconds(network.slot_s),
        "max_kes_evolutions": kes_evolutions,
        "security_param": security,
    }


def seconds(given: float) -> int | float:
    """Return a whole number as one: clients expect it, though test networks have shorter slots."""
    return int(given) if given == int(given) else given


def _from_file(file: Path, network: Network) -> dict[str, Any]:
    given = msgspec.json.decode(file.read_bytes())
    return _genesis(
        network,
        given["activeSlotsCoeff"],
        given["updateQuorum"],
        given["maxLovelaceSupply"],
        given["slotsPerKESPeriod"],
        given["maxKESEvolutions"],
        given["securityParam"],
    )


def parameters(given: dict[str, Any], epoch: int) -> dict[str, Any]:
    """Return protocol parameters in Blockfrost's names; `given` is the answer of Ogmios 6."""
    pools, dreps = (
        given.get("stakePoolVotingThresholds") or {},
        given.get("delegateRepresentativeVotingThresholds") or {},
    )
    tx_units, block_units = given["maxExecutionUnitsPerTransaction"], given["maxExecutionUnitsPerBlock"]
    prices, models = given["scriptExecutionPrices"], given.get("plutusCostModels") or {}
    raw = {f"PlutusV{name[-1]}": costs for name, costs in models.items()}
    per_byte = str(given["minUtxoDepositCoefficient"])
    group, committee = dreps.get("protocolParametersUpdate") or {}, dreps.get("constitutionalCommittee") or {}
    own = pools.get("constitutionalCommittee") or {}
    security = _number((pools.get("protocolParametersUpdate") or {}).get("security"))
    references = given.get("minFeeReferenceScripts") or {}
    return {
        "epoch": epoch,
        "min_fee_a": given["minFeeCoefficient"],
        "min_fee_b": _lovelace(given["minFeeConstant"]),
        "max_block_size": given["maxBlockBodySize"]["bytes"],
        "max_tx_size": given["maxTransactionSize"]["bytes"],
        "max_block_header_size": given["maxBlockHeaderSize"]["bytes"],
        "key_deposit": str(_lovelace(given["stakeCredentialDeposit"])),
        "pool_deposit": str(_lovelace(given["stakePoolDeposit"])),
        "e_max": given["stakePoolRetirementEpochBound"],
        "n_opt": given["desiredNumberOfStakePools"],
        "a0": _number(given["stakePoolPledgeInfluence"]),
        "rho": _number(given["monetaryExpansion"]),
        "tau": _number(given["treasuryExpansion"]),
        "decentralisation_param": _number(given.get("federatedBlockProductionRatio")) or 0,
        "extra_entropy": None if given.get("extraEntropy") in (None, "neutral") else given["extraEntropy"],
        "protocol_major_ver": given["version"]["major"],
        "protocol_minor_ver": given["version"]["minor"],
        "min_utxo": per_byte,
        "min_pool_cost": str(_lovelace(given["minStakePoolCost"])),
        "nonce": given.get("nonce", ""),
        "cost_models": {name: {f"{n:03}": cost for n, cost in enumerate(costs)} for name, costs in raw.items()},
        "cost_models_raw": raw,
        "price_mem": _number(prices["memory"]),
        "price_step": _number(prices["cpu"]),
        "max_tx_ex_mem": str(tx_units["memory"]),
        "max_tx_ex_steps": str(tx_units["cpu"]),
        "max_block_ex_mem": str(block_units["memory"]),
        "max_block_ex_steps": str(block_units["cpu"]),
        "max_val_size": str(given["maxValueSize"]["bytes"]),
        "collateral_percent": given["collateralPercentage"],
        "max_collateral_inputs": given["maxCollateralInputs"],
        "coins_per_utxo_size": per_byte,
        "coins_per_utxo_word": per_byte,
        "pvt_motion_no_confidence": _number(pools.get("noConfidence")),
        "pvt_committee_normal": _number(own.get("default")),
        "pvt_committee_no_confidence": _number(own.get("stateOfNoConfidence")),
        "pvt_hard_fork_initiation": _number(pools.get("hardForkInitiation")),
        "dvt_motion_no_confidence": _number(dreps.get("noConfidence")),
        "dvt_committee_normal": _number(committee.get("default")),
        "dvt_committee_no_confidence": _number(committee.get("stateOfNoConfidence")),
        "dvt_update_to_constitution": _number(dreps.get("constitution")),
        "dvt_hard_fork_initiation": _number(dreps.get("hardForkInitiation")),
        "dvt_p_p_network_group": _number(group.get("network")),
        "dvt_p_p_economic_group": _number(group.get("economic")),
        "dvt_p_p_technical_group": _number(group.get("technical")),
        "dvt_p_p_gov_group": _number(group.get("governance")),
        "dvt_treasury_withdrawal": _number(dreps.get("treasuryWithdrawals")),
        "committee_min_size": _text(given.get("constitutionalCommitteeMinSize")),
        "committee_max_term_length": _text(given.get("constitutionalCommitteeMaxTermLength")),
        "gov_action_lifetime": _text(given.get("governanceActionLifetime")),
        "gov_action_deposit": _text(_lovelace(given.get("governanceActionDeposit"))),
        "drep_deposit": _text(_lovelace(given.get("delegateRepresentativeDeposit"))),
        "drep_activity": _text(given.get("delegateRepresentativeMaxIdleTime")),
        "pvtpp_security_group": security,
        "pvt_p_p_security_group": security,
        "min_fee_ref_script_cost_per_byte": _number(references.get("base")),
    }


def _lovelace(given: Any) -> int | None:
    return None if given is None else int(given["ada"]["lovelace"] if isinstance(given, dict) else given)


def _number(given: Any) -> float | int | None:
    """Return a number that Ogmios writes as a fraction: `577/10000`."""
    if given is None:
        return None
    number = Fraction(str(given))
    return int(number) if number.denominator == 1 else float(number)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
