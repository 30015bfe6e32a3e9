"""Bitcoin's addresses, which encode locking scripts. The script identifies the owner, and contains no network."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from formats import base58, bech32
from formats.errors import AddressError
from handlers.addresses.plain import Codec, Family, is_hex


class Network(NamedTuple):
    """How a network writes its addresses: bech32's prefix, base58check's first byte for key and for script hashes."""

    prefix: str
    key_hash: int
    script_hash: int


_TEST = Network("tb", 0x6F, 0xC4)
NETWORKS = {
    "mainnet": Network("bc", 0x00, 0x05),
    "testnet3": _TEST,
    "testnet4": _TEST,
    "signet": _TEST,
    "regtest": Network("bcrt", 0x6F, 0xC4),
}
_PREFIXES = {network.prefix for network in NETWORKS.values()}
_KEY_HASH = (b"\x76\xa9\x14", b"\x88\xac")  # DUP HASH160 <20 bytes> EQUALVERIFY CHECKSIG
_SCRIPT_HASH = (b"\xa9\x14", b"\x87")  # HASH160 <20 bytes> EQUAL
_HASHED_BYTES = 21  # with the first byte, which determines the kind
_PRIVATE_KEY = {0x80, 0xEF}
_EXTENDED_KEY_BYTES = 78


class Scripts(Codec):
    """Locking scripts in hex, for a network whose address format is unknown: private ones have any name."""

    family: Family = "bitcoin"
    forms = "hex of the locking script"

    def __init__(self, network: str) -> None:
        super().__init__(network)
        known = ", ".join(NETWORKS)
        self.missing = f"bitcoin has no network {network!r}, only {known}: addresses are the hex of locking scripts"


class Bitcoin(Codec):
    """Bitcoin's addresses on one of the known networks."""

    family: Family = "bitcoin"

    def __init__(self, network: str) -> None:
        super().__init__(network)
        self._network = NETWORKS[network]
        self.forms = (
            f"bech32 ({self._network.prefix}1…), base58 ({_firsts(self._network)}), and hex of the locking script"
        )

    def _read(self, text: str) -> bytes:
        if bech32.is_meant(text, _PREFIXES):
            decoded = bech32.decode(text)
            if decoded.prefix not in _PREFIXES:
                what = f"{decoded.prefix} is none of {', '.join(sorted(_PREFIXES))}"
                raise AddressError("unknown prefix", what)
            self._check_network([name for name, network in NETWORKS.items() if network.prefix == decoded.prefix])
            return _witness_script(decoded)
        payload = base58.decode_check(text)
        first = payload[0]
        self._check_network(_owners(payload))
        if first == self._network.key_hash:
            return payload[1:].join(_KEY_HASH)
        return payload[1:].join(_SCRIPT_HASH)

    def write(self, raw: bytes) -> str:
        """Return the address of a locking script; one that has none, as a bare public key, comes out as hex."""
        text = None
        if len(raw) == 25 and raw.startswith(_KEY_HASH[0]) and raw.endswith(_KEY_HASH[1]):
            text = _hashed(self._network.key_hash, raw[3:23])
        elif len(raw) == 23 and raw.startswith(_SCRIPT_HASH[0]) and raw.endswith(_SCRIPT_HASH[1]):
            text = _hashed(self._network.script_hash, raw[2:22])
        elif _is_witness(raw):
            text = _witness(self._network.prefix, raw)
        # NOTE: a text of hex digits alone would be read as hex; chance never makes one, malice may.
        return raw.hex() if text is None or is_hex(text) else text

    def _check_network(self, owners: list[str]) -> None:
        if self.network not in owners:
            theirs = " or ".join((", ".join(owners[:-1]), owners[-1]) if owners[1:] else owners)
            raise AddressError("another network", f"an address of {theirs}, but chain.network is {self.network}")


def _firsts(network: Network) -> str:
    """Return how the base58 addresses of a network begin, in all of their spellings."""
    firsts = [
        base58.encode_check(bytes((first,)) + bytes((digest,)) * 20)[0]
        for first in (network.key_hash, network.script_hash)
        for digest in (0, 0xFF)
    ]
    return ", ".join(f"{first}…" for first in dict.fromkeys(firsts))


def _owners(payload: bytes) -> list[str]:
    """Return the networks whose address has this first byte."""
    first = payload[0]
    if first in _PRIVATE_KEY and len(payload) in (33, 34):
        raise AddressError("another kind", "a private key, which must be kept secret, where an address is expected")
    if len(payload) == _EXTENDED_KEY_BYTES:
        raise AddressError("another kind", "an extended key where an address is expected")
    if len(payload) != _HASHED_BYTES:
        raise AddressError("malformed", f"{len(payload)} bytes, where an address has {_HASHED_BYTES}")
    owners = [name for name, network in NETWORKS.items() if first in (network.key_hash, network.script_hash)]
    if not owners:
        raise AddressError("unknown prefix", f"an address of another chain: its first byte is 0x{first:02x}")
    return owners


def _witness_script(decoded: bech32.Decoded) -> bytes:
    _, number, count, constant = decoded
    if not count:
        raise AddressError("malformed", "nothing between prefix and checksum")
    version = number >> 5 * (count - 1)
    if version > 16:
        raise AddressError("malformed", f"there is no witness version {version}")
    if constant != (bech32.BECH32M if version else bech32.BECH32):
        ours, other = ("bech32m", "bech32") if version else ("bech32", "bech32m")
        raise AddressError("bad checksum", f"it is that of {other}, and witness version {version} has {ours}")
    program = bech32.data(number & (1 << 5 * (count - 1)) - 1, count - 1)
    if not _fits(version, len(program)):
        raise AddressError("malformed", f"a program of {len(program)} bytes for witness version {version}")
    return bytes((version and 0x50 + version, len(program))) + program


def _is_witness(raw: bytes) -> bool:
    """Return whether a script is a version and one push, which makes it a witness program."""
    if len(raw) < 4 or raw[1] != len(raw) - 2:
        return False
    return (raw[0] == 0 or 0x51 <= raw[0] <= 0x60) and _fits(raw[0], raw[1])


def _fits(version: int, size: int) -> bool:
    return 2 <= size <= 40 and (version > 0 or size in (20, 32))


@lru_cache(8192)
def _hashed(first: int, digest: bytes) -> str:
    return base58.encode_check(bytes((first,)) + digest)


@lru_cache(8192)
def _witness(prefix: str, script: bytes) -> str:
    version = script[0] and script[0] - 0x50
    number, count = bech32.symbols(script[2:])
    constant = bech32.BECH32M if version else bech32.BECH32
    return bech32.encode(prefix, version << 5 * count | number, count + 1, constant)
