"""Outputs by address, account, asset and script, and their sums."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from daemon.http.blockfrost.network import Chain
from daemon.http.blockfrost.rendering import Form, Renderer, amounts
from daemon.http.blockfrost.requests import BAD_ADDRESS, Paging, Refused, hex_of, not_found
from daemon.http.facade import Site
from formats import bech32
from handlers.addresses import AddressError, shelley
from handlers.matches import Matches, Row, Wanted
from handlers.query import Listed, NoIndex, Snapshot, Sum
from handlers.rendering import Written
from handlers.spenders import Places
from handlers.touched import touching
from storage.history.layout import to_extra
from storage.history.output_keys import asset_key
from storage.indexes import POLICY

_CACHE_BYTES = 16 << 20  # bytes of pages that are kept until a block is rolled back
_MOST_UNIT = 2 * (POLICY + 32)
_encode = msgspec.json.Encoder().encode
Owner = tuple[Listed, bytes | None]  # where its outputs are listed, and the address if it is one


class Outputs:
    """Answers queries for outputs."""

    def __init__(self, site: Site, chain: Chain, renderer: Renderer) -> None:
        self._codec, self._turns, self._chain, self._renderer = site.codec, site.turns, chain, renderer
        self._branch: Written | None = None
        self._written = Written(_CACHE_BYTES)

    # --- whose outputs -------------------------------------------------------------------------------------------

    def owner(self, shot: Snapshot, text: str) -> Owner:
        """Return whose outputs are requested: those of an address, or of a payment credential.

        Raises:
            Refused: the text is neither.
        """
        try:
            if text.startswith(("addr_vkh1", "script1")):
                return shot.by_credential(self._codec.read_credential(text)), None
            if len(text) % 2 == 0 and text.isalnum() and text.lower().strip("0123456789abcdef") == "":
                raise Refused(400, BAD_ADDRESS)  # hexadecimal digits are not an address here
            address = self._codec.read(text)
        except AddressError as error:
            raise Refused(400, BAD_ADDRESS) from error
        return shot.by_address(address), address

    def account(self, shot: Snapshot, text: str) -> Listed:
        """Return where the outputs of an account are listed.

        Raises:
            Refused: the text is not a stake address.
        """
        try:
            if not text.startswith("stake"):
                raise Refused(400, "Invalid or malformed stake address format.")
            return shot.listed("stake_credential", self._codec.read_credential(text, "stake"))
        except AddressError as error:
            raise Refused(400, "Invalid or malformed stake address format.") from error

    def asset(self, text: str) -> tuple[bytes, bytes]:
        """Return policy and name of a unit.

        Raises:
            Refused: the text is not a unit.
        """
        try:
            raw = bytes.fromhex(text) if text.isalnum() and len(text) <= _MOST_UNIT else b""
        except ValueError:
            raw = b""
        if len(raw) < POLICY:
            raise Refused(400, "Invalid or malformed asset format.")
        return raw[:POLICY], raw[POLICY:]

    # --- lists ---------------------------------------------------------------------------------------------------

    async def page(
        self, shot: Snapshot, where: Listed, paging: Paging, unit: str | None = None, *, form: Form = ""
    ) -> bytes:
        """Return a page of unspent outputs.

        Raises:
            Refused: 404, no output under this key is known.
        """
        asset = None if unit in (None, "lovelace") else b"".join(self.asset(str(unit)))
        walk = shot.walk(where, paging.order, None, asset)
        for _ in walk.search(paging.skip, paging.count):
            await self._turns.next()
            shot.check_age()
        places = walk.next(paging.count)
        if not places and not await self.seen(shot, where):
            raise not_found()
        key = b"".join(places) + form.encode()
        if shot.boundary.written is not self._branch:
            self._branch, self._written = shot.boundary.written, Written(_CACHE_BYTES)
        written = self._written.find(key) if shot.owners.nothing_reassigned else None
        if written is None:
            texts = [self._renderer.utxo(entry, form) for entry in shot.entries(places)]
            written = f"[{','.join(texts)}]".encode()
            self._written.keep(key, written)
        return written

    async def seen(self, shot: Snapshot, where: Listed) -> bool:
        """Return whether an output under a key is unspent or restorable."""
        matches = Matches(shot, Wanted(lists=(where,), order="asc"))
        for rows in matches.rows(matches.numbers()):
            if rows:
                return True
            await self._turns.next()
            shot.check_age()
        return False

    async def sum(self, shot: Snapshot, where: Listed) -> Sum:
        """Return what everything under a key holds.

        Raises:
            Refused: 404, no output under this key is known.
        """
        total = Sum()
        for so_far in shot.balance(where):
            total = so_far
            await self._turns.next()
            shot.check_age()
        if total.count == 0 and not await self.seen(shot, where):
            raise not_found()
        return total

    async def address(self, shot: Snapshot, text: str) -> dict[str, Any]:
        """Return the amounts at an address."""
        where, address = self.owner(shot, text)
        total = await self.sum(shot, where)
        held = [(*unit, quantity) for unit, quantity in sorted(total.assets.items())]
        parts = shelley.credentials(address or b"")
        return {
            "address": text,
            "amount": amounts(total.value, held),
            "stake_address": None if address is None else self._codec.stake(address),
            "type": "shelley" if address is None or parts.payment else "byron",
            "script": parts.payment_kind == "script" or text.startswith("script1"),
        }

    async def account_assets(self, shot: Snapshot, text: str, paging: Paging) -> list[dict[str, str]]:
        """Return the assets of an account."""
        total = await self.sum(shot, self.account(shot, text))
        listed = [(*unit, quantity) for unit, quantity in total.assets.items()]
        return paging.of(amounts(0, listed)[1:])

    def holding(self, shot: Snapshot, policy: bytes, name: bytes | None) -> Listed:
        """Return where the outputs are listed that hold an asset, or one of a policy."""
        if name is not None and "asset" in shot.boundary.indexes:
            return "asset", asset_key(policy, name)
        return shot.listed("policy", policy)

    async def _held(self, shot: Snapshot, policy: bytes, name: bytes | None) -> list[tuple[Row, bytes, int]]:
        """Return the unspent outputs with each asset of a policy, or with one, in order."""
        wanted = Wanted(lists=(self.holding(shot, policy, name),), spent=False, order="asc")
        matches, found = Matches(shot, wanted), list[tuple[Row, bytes, int]]()
        for rows in matches.rows(matches.numbers()):
            for row in rows:
                assets = to_extra(row.extra).assets
                found += [(row, n, quantity) for p, n, quantity in assets if p == policy and name in (None, n)]
            await self._turns.next()
            shot.check_age()
        return found

    async def asset_facts(self, shot: Snapshot, text: str) -> dict[str, Any]:
        """Return how much of an asset unspent outputs hold; null for fields of its minting transactions."""
        policy, name = self.asset(text)
        held = await self._held(shot, policy, name)
        if not held and not await self.seen(shot, self.holding(shot, policy, name)):
            raise not_found()
        return {
            "asset": text,
            "policy_id": policy.hex(),
            "asset_name": name.hex() or None,
            "fingerprint": fingerprint(policy, name),
            "quantity": str(sum(quantity for _, _, quantity in held)),
            "initial_mint_tx_hash": None,
            "mint_or_burn_count": None,
            "onchain_metadata": None,
            "onchain_metadata_standard": None,
            "onchain_metadata_extra": None,
            "metadata": None,
        }

    async def asset_addresses(self, shot: Snapshot, text: str, paging: Paging) -> list[dict[str, str]]:
        """Return the addresses that hold an asset."""
        policy, name = self.asset(text)
        held = dict[bytes, int]()
        for row, _, quantity in await self._held(shot, policy, name):
            held[row.address] = held.get(row.address, 0) + quantity
        if not held and not await self.seen(shot, self.holding(shot, policy, name)):
            raise not_found()
        page = paging.of([*held.items()])
        return [{"address": self._renderer.address(raw), "quantity": str(quantity)} for raw, quantity in page]

    async def policy(self, shot: Snapshot, text: str, paging: Paging) -> list[dict[str, str]]:
        """Return the assets of a policy."""
        policy, held = hex_of(text, POLICY), dict[bytes, int]()
        for _, name, quantity in await self._held(shot, policy, None):
            held[name] = held.get(name, 0) + quantity
        if not held and not await self.seen(shot, shot.listed("policy", policy)):
            raise not_found()
        return [
            {"asset": policy.hex() + name.hex(), "quantity": str(quantity)}
            for name, quantity in paging.of([*held.items()])
        ]

    async def transactions(self, shot: Snapshot, text: str, paging: Paging) -> list[dict[str, Any]]:
        """Return the transactions that touched an address, where the index `history` is kept."""
        _, address = self.owner(shot, text)
        if address is None:
            raise NoIndex("history")
        found = touching(shot, address, paging.count, paging.order, paging.page, None).transactions
        if not found and paging.page == 1:
            raise not_found()
        return [
            {
                "tx_hash": each.tx_hash,
                "tx_index": place_of(shot, bytes.fromhex(each.tx_hash)),
                "block_height": each.block_height,
                "block_time": self._chain.time(each.block_time, each.slot),
            }
            for each in found
        ]


def fingerprint(policy: bytes, name: bytes) -> str:
    """Return the short name of an asset (CIP 14)."""
    return bech32.encode("asset", *bech32.symbols(blake2b(policy + name, digest_size=20).digest()))


def place_of(shot: Snapshot, txid: bytes) -> int | None:
    """Return which transaction of its block one is."""
    tx = shot.stored.find_tx(txid)
    return None if tx is None else Places().of(shot, tx.block, tx.number)
