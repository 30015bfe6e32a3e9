"""Proof of work: the target of a header, and whether its hash meets it."""

from functools import lru_cache

from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.networks import Network

_NEGATIVE = 0x0080_0000


def target_of(bits: int) -> int:
    """Return the number that a hash must not exceed; 0, which no hash meets, for a form without meaning."""
    exponent, mantissa = bits >> 24, bits & 0x007F_FFFF
    if bits & _NEGATIVE or exponent > 34:
        return 0
    return mantissa << 8 * (exponent - 3) if exponent > 3 else mantissa >> 8 * (3 - exponent)


@lru_cache(maxsize=4096)
def work_of(bits: int) -> int:
    """Return how many hashes finding such a header takes on average."""
    target = target_of(bits)
    return (1 << 256) // (target + 1) if target else 0


def check_proof(block_hash: bytes, bits: int, network: Network) -> None:
    """Refuse a header (its hash in display order) that claims work that was not done.

    Without this a few forged bytes would outweigh the whole chain. Whether the difficulty is the one that the
    network demanded at that height is not checked: claiming less only makes a chain lose.
    """
    target = target_of(bits)
    if not 0 < target <= network.proof_limit:
        raise BlockError(f"block {block_hash.hex()} claims the target {bits:08x}, which {network.name} does not allow")
    if int.from_bytes(block_hash) > target:
        raise BlockError(f"block {block_hash.hex()} does not meet its own target {bits:08x}")
