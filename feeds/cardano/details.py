"""What a transaction contains besides inputs, outputs and datums: counts and sums, redeemers, metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from feeds.cardano.errors import BlockError
from feeds.cardano.shelley import after_set_tag
from formats.cbor import BREAK, CborError, array, mapping, skip, uint
from handlers.events import Details

PURPOSES = ("spend", "mint", "cert", "reward", "vote", "propose")  # by the tag of a redeemer
_FALSE, _TRUE = 0xF4, 0xF5
_AUXILIARY_TAG = b"\xd9\x01\x03"  # 259
_TTL, _CERTIFICATES, _WITHDRAWALS, _BEGIN, _MINT, _DONATION = 3, 4, 5, 8, 9, 22  # fields of a body
_COUNTED = frozenset({_CERTIFICATES, _WITHDRAWALS, _BEGIN, _MINT, _DONATION})
_REDEEMERS = 5
_REGISTRATIONS = frozenset({0, 1, 7, 8, 11, 12, 13})  # of stake credentials, and their ends
_DELEGATIONS = frozenset({2, 10, 11, 13})
_POOL_UPDATE, _POOL_RETIREMENT, _REWARDS_MOVED = 3, 4, 6
_MOST = 2**64 - 1
_T = TypeVar("_T")


def details_of(buf: bytes, fields: dict[int, int], redeemers: int) -> Details:
    """Return counts and sums, given where the fields of a body begin, and how many redeemers its witnesses have."""
    ttl = fields.get(_TTL)
    hereafter = None if ttl is None else uint(buf, ttl)[0]
    if _COUNTED.isdisjoint(fields):
        return Details(None, hereafter, redeemer_count=redeemers) if redeemers else Details(None, hereafter)
    found: dict[str, int] = {}
    if _BEGIN in fields:
        found["invalid_before"] = uint(buf, fields[_BEGIN])[0]
    if _MINT in fields:
        found["asset_mint_or_burn_count"] = _minted(buf, fields[_MINT])
    if _CERTIFICATES in fields:
        found |= _certificates([_kind(buf, at) for at in _items(buf, fields[_CERTIFICATES])])
    if _WITHDRAWALS in fields:
        withdrawn = [_number(buf, value) for _, value in _entries(buf, fields[_WITHDRAWALS])]
        if sum(withdrawn) > _MOST:
            raise BlockError("the withdrawals are too large", fields[_WITHDRAWALS])
        found["withdrawal_count"], found["withdrawn"] = len(withdrawn), sum(withdrawn)
    if _DONATION in fields:
        found["treasury_donation"] = _number(buf, fields[_DONATION])
    return Details(invalid_hereafter=hereafter, redeemer_count=redeemers, **found)


def _minted(buf: bytes, at: int) -> int:
    """Return how many assets are listed, by policy and name."""
    assets = 0
    count, at = mapping(buf, at)
    while count and not (count < 0 and buf[at] == BREAK):
        at = skip(buf, at)
        assets += _count(buf, at)
        count -= 1
        if count:
            at = skip(buf, at)
    return assets


def _certificates(kinds: list[int]) -> dict[str, int]:
    return {
        "mir_cert_count": kinds.count(_REWARDS_MOVED),
        "delegation_count": sum(kind in _DELEGATIONS for kind in kinds),
        "stake_cert_count": sum(kind in _REGISTRATIONS for kind in kinds),
        "pool_update_count": kinds.count(_POOL_UPDATE),
        "pool_retire_count": kinds.count(_POOL_RETIREMENT),
    }


def read_details(raw: bytes) -> Details:
    """Return the details of a standalone transaction since Shelley.

    Raises:
        BlockError: the bytes are not a transaction.
    """
    return _read(_details, raw)


def _details(raw: bytes) -> Details:
    body, witnesses = (dict(_fields(raw, at)) for at in _parts(raw)[:2])
    at = witnesses.get(_REDEEMERS)
    return details_of(raw, body, 0 if at is None else count_redeemers(raw, at))


class Redeemer(NamedTuple):
    """A redeemer's purpose, the place of what it is for among its kind, and its budget."""

    purpose: str
    place: int
    memory: int
    steps: int


class Extras(NamedTuple):
    """The redeemers of a transaction, and its metadata as `{label: value}` in CBOR."""

    redeemers: list[Redeemer]
    metadata: list[tuple[int, bytes]]


def read_extras(raw: bytes) -> Extras:
    """Return the redeemers and the metadata of a standalone transaction.

    Raises:
        BlockError: the bytes are not a transaction.
    """
    return _read(_extras, raw)


def _extras(raw: bytes) -> Extras:
    parts = _parts(raw)
    witnesses = dict(_fields(raw, parts[1]))
    auxiliary = [at for at in parts[2:] if raw[at] not in (_FALSE, _TRUE)]
    return Extras(_redeemers(raw, witnesses.get(_REDEEMERS)), _metadata(raw, auxiliary[0]) if auxiliary else [])


def _kind(raw: bytes, at: int) -> int:
    fields = _items(raw, at)
    if not fields:
        raise CborError("a certificate has no fields", at)
    return _number(raw, fields[0])


def _redeemers(raw: bytes, at: int | None) -> list[Redeemer]:
    """Return redeemers in either form: `[[tag, index, data, units], …]`, or `{[tag, index]: [data, units], …}`."""
    if at is None:
        return []
    if raw[at] >> 5 == 5:
        each = [(*_items(raw, key), *_items(raw, value)) for key, value in _entries(raw, at)]
    else:
        each = [tuple(_items(raw, one)) for one in _items(raw, at)]
    found = []
    for fields in each:
        if len(fields) != 4:
            raise CborError(f"a redeemer has {len(fields)} fields", at)
        tag, index, _, units = fields
        purpose, budget = _number(raw, tag), [_number(raw, each) for each in _items(raw, units)]
        if purpose >= len(PURPOSES) or len(budget) != 2:
            raise CborError("a redeemer has another purpose or budget than scripts have", tag)
        found.append(Redeemer(PURPOSES[purpose], _number(raw, index), *budget))
    return found


def _metadata(raw: bytes, at: int) -> list[tuple[int, bytes]]:
    """Return metadata in each form: alone, with scripts in an array, or in a tagged map."""
    if raw[at : at + 3] == _AUXILIARY_TAG:
        inside = [value for key, value in _entries(raw, at + 3) if raw[key] == 0]
    elif raw[at] >> 5 == 4:
        inside = _items(raw, at)[:1]
    else:
        inside = [at] if raw[at] >> 5 == 5 else []
    return [
        (_number(raw, label), b"\xa1" + raw[label : skip(raw, value)])
        for each in inside
        for label, value in _entries(raw, each)
    ]


def _read(read: Callable[[bytes], _T], raw: bytes) -> _T:
    try:
        return read(raw)
    except IndexError:
        raise BlockError("the transaction is cut off", len(raw)) from None
    except CborError as error:
        raise BlockError.of(error) from None


def _parts(raw: bytes) -> list[int]:
    parts = _items(raw, 0)
    if len(parts) < 3:
        raise CborError(f"a transaction has {len(parts)} fields", 0)
    return parts


def _fields(raw: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the number of each field, and where its value begins."""
    return ((_number(raw, key), value) for key, value in _entries(raw, at))


def count_redeemers(raw: bytes, at: int) -> int:
    """Return how many redeemers there are in either form."""
    if raw[at] >> 5 == 5:
        return _count(raw, at)
    count, _ = array(raw, at)
    return count if count >= 0 else len(_items(raw, at))


def _count(raw: bytes, at: int) -> int:
    """Return how many entries a map has."""
    count, _ = mapping(raw, at)
    return count if count >= 0 else len(_entries(raw, at))


def _number(raw: bytes, at: int) -> int:
    return uint(raw, at)[0]


def _items(raw: bytes, at: int | None) -> list[int]:
    """Return where each item of an array, or of a set, begins."""
    if at is None:
        return []
    count, at = array(raw, at) if raw[at] >> 5 != 6 else array(raw, after_set_tag(raw, at))
    return _begins(raw, at, count)


def _entries(raw: bytes, at: int | None) -> list[tuple[int, int]]:
    """Return where each key of a map begins, and its value."""
    if at is None:
        return []
    count, at = mapping(raw, at)
    begins = _begins(raw, at, 2 * count)
    if len(begins) % 2:
        raise CborError("a map ends after a key", at)
    return [*zip(begins[::2], begins[1::2], strict=True)]


def _begins(raw: bytes, at: int, count: int) -> list[int]:
    found = list[int]()
    while count:
        if count < 0 and raw[at] == BREAK:
            break
        found.append(at)
        at = skip(raw, at)
        count -= 1
    return found
