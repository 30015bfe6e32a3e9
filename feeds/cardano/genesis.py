"""The outputs before the first block, and the slot lengths, from the JSON genesis files of a network."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from feeds.cardano.addresses import from_base58, redeem_address
from feeds.cardano.eras import NETWORKS, Network
from feeds.cardano.errors import GenesisError
from handlers.events import GenesisOutput, GenesisOutputs, Output

MAX_LOVELACE = 2**64 - 1
_UNSAID = 0


class _ProtocolConsts(Struct, frozen=True, rename="camel"):
    k: int | None = None
    protocol_magic: int | None = None


class _BlockVersionData(Struct, frozen=True, rename="camel"):
    slot_duration: str | None = None


class _Document(Struct, frozen=True, rename="camel"):
    """A genesis file of Byron or Shelley, distinguished by its fields. Byron writes amounts as text."""

    non_avvm_balances: dict[str, str | int] | None = None
    avvm_distr: dict[str, str | int] | None = None
    start_time: int | None = None
    protocol_consts: _ProtocolConsts = _ProtocolConsts()
    protocol_magic: int | None = None
    block_version_data: _BlockVersionData = _BlockVersionData()
    initial_funds: dict[str, int] | None = None
    system_start: str | None = None
    slot_length: float | None = None
    epoch_length: int | None = None
    network_magic: int | None = None


class Genesis(Struct, frozen=True):
    """The genesis files of one network, read."""

    outputs: GenesisOutputs
    network: Network


def read_genesis(
    files: Sequence[Path], name: str = "custom", byron_epochs: int = 0, base: Network | None = None
) -> Genesis:
    """Return the content of the Byron and the Shelley genesis file of one network; one of them may be missing.

    An entry becomes output 0 of a transaction whose id is the hash of the address; entries without value are kept,
    a node has them too. No genesis file contains when Byron ended: `byron_epochs` does. What the files lack about slots
    is as in `base`.

    Raises:
        GenesisError: a file cannot be read, is not JSON of that form, or has an invalid address or amount.
    """
    outputs: list[GenesisOutput] = []
    network = base or Network(name, start=0, byron_epochs=byron_epochs)
    for file in files:
        document = _read(file)
        try:
            outputs += _outputs(document)
            network = _counting(document, network)
        except ValueError as error:
            raise GenesisError(f"{file}: {error}") from None
    return Genesis(GenesisOutputs(outputs=outputs), network)


def choose_network(name: str, files: Sequence[Path], byron_epochs: int | None = None) -> Genesis:
    """Return the network of a name, with the outputs of its genesis files where there are any.

    The files of a known network must define its slots as they are known. For any other network the files define all
    that is needed, except how many epochs Byron lasted.

    Raises:
        GenesisError: as `read_genesis`; the files are of another network; too little is known of this one.
    """
    known = NETWORKS.get(name)
    if known is None:
        return _unknown_network(name, files, byron_epochs or 0)
    if byron_epochs not in (None, known.byron_epochs):
        raise GenesisError(f"Byron lasted {known.byron_epochs} epochs on {name}, not {byron_epochs}")
    outputs: list[GenesisOutput] = []
    for file in files:
        read = read_genesis([file], name, known.byron_epochs, known)
        _check_same(file, read.network, known)
        outputs += read.outputs.outputs
    return Genesis(GenesisOutputs(outputs=outputs), known)


def _unknown_network(name: str, files: Sequence[Path], byron_epochs: int) -> Genesis:
    nothing = Network(name, _UNSAID, byron_epochs, _UNSAID, _UNSAID, _UNSAID, _UNSAID)
    genesis = read_genesis(files, name, byron_epochs, nothing)
    network = genesis.network
    if _UNSAID in (network.start, network.epoch_slots, network.slot_s):
        which = ", ".join(NETWORKS)
        raise GenesisError(
            f"network {name} is not one of {which}: pass its Shelley genesis file, which defines its slots"
        )
    if byron_epochs and _UNSAID in (network.byron_epoch_slots, network.byron_slot_s):
        raise GenesisError(f"network {name} began with the Byron era: pass its Byron genesis file too")
    return genesis


def _check_same(file: Path, given: Network, known: Network) -> None:
    """Refuse a file that counts slots in another way; Byron's slots do not matter if the network had no Byron era."""
    for what in (
        "start",
        "magic",
        "epoch_slots",
        "slot_s",
        *(("byron_epoch_slots", "byron_slot_s") if known.byron_epochs else ()),
    ):
        here, there = getattr(given, what), getattr(known, what)
        if here != there:
            raise GenesisError(
                f"{file}: not a genesis file of {known.name}: {what} is {here:.10g}, expected {there:.10g}"
            )


def _read(file: Path) -> _Document:
    try:
        document = msgspec.json.decode(file.read_bytes(), type=_Document)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise GenesisError(f"{file}: {error}") from None
    if all(part is None for part in (document.non_avvm_balances, document.avvm_distr, document.initial_funds)):
        raise GenesisError(f"{file}: not a genesis file of Byron or Shelley")
    return document


def _outputs(document: _Document) -> list[GenesisOutput]:
    magic = _magic(document)
    found: list[GenesisOutput] = []
    for text, amount in (document.non_avvm_balances or {}).items():
        found.append(_output(from_base58(text), text, amount))
    for text, amount in (document.avvm_distr or {}).items():
        if magic is None:
            raise ValueError("the file has vouchers (avvmDistr), but no protocolMagic")
        found.append(_output(redeem_address(_voucher_key(text), magic), text, amount))
    for text, amount in (document.initial_funds or {}).items():
        found.append(_output(bytes.fromhex(text), text, amount))
    return found


def _magic(document: _Document) -> int | None:
    given = (document.protocol_consts.protocol_magic, document.protocol_magic, document.network_magic)
    return next((magic for magic in given if magic is not None), None)


def _output(address: bytes, text: str, amount: str | int) -> GenesisOutput:
    value = int(amount)
    if not 0 <= value <= MAX_LOVELACE:
        raise ValueError(f"{text} has {value} lovelace")
    return GenesisOutput(blake2b(address, digest_size=32).digest(), 0, Output(address, value))


def _voucher_key(text: str) -> bytes:
    key = urlsafe_b64decode(text)
    if len(key) != 32:
        raise ValueError(f"the voucher {text} has {len(key)} bytes, expected 32")
    return key


def _counting(document: _Document, network: Network) -> Network:
    """Return the network with this document's parameters of slots."""
    known: dict[str, float] = {}
    if (magic := _magic(document)) is not None:
        known["magic"] = magic
    if document.start_time is not None:
        known["start"] = document.start_time
    elif document.system_start is not None:
        start = datetime.fromisoformat(document.system_start)
        known["start"] = int((start if start.tzinfo else start.replace(tzinfo=UTC)).timestamp())
    if document.protocol_consts.k is not None:
        known["byron_epoch_slots"] = 10 * document.protocol_consts.k
    if document.block_version_data.slot_duration is not None:
        known["byron_slot_s"] = int(document.block_version_data.slot_duration) / 1000
    if document.epoch_length is not None:
        known["epoch_slots"] = document.epoch_length
    if document.slot_length is not None:
        known["slot_s"] = document.slot_length
    for what in ("byron_epoch_slots", "byron_slot_s", "epoch_slots", "slot_s"):
        if known.get(what, 1) <= 0:
            raise ValueError(f"{what} is {known[what]:g}")
    return msgspec.structs.replace(network, **known)
