"""What a standalone transaction contains besides outputs and datums: certificates, withdrawals, redeemers, metadata."""

from __future__ import annotations

from typing import NamedTuple

from feeds.cardano.errors import BlockError
from feeds.cardano.shelley import after_set_tag
from formats.cbor import BREAK, CborError, array, mapping, skip, uint

PURPOSES = ("spend", "mint", "cert", "reward", "vote", "propose")  # by the tag of a redeemer
_FALSE, _TRUE = 0xF4, 0xF5
_AUXILIARY_TAG = b"\xd9\x01\x03"  # 259
_TTL, _CERTIFICATES, _WITHDRAWALS, _BEGIN, _MINT, _DONATION = 3, 4, 5, 8, 9, 22
_REDEEMERS = 5


class Redeemer(NamedTuple):
    """A redeemer's purpose, the place of what it is for among its kind, and its budget."""

    purpose: str
    place: int
    memory: int
    steps: int


class Details(NamedTuple):
    """What a transaction contains; certificates by the number of their kind, metadata as `{label: value}` in CBOR."""

    invalid_before: int | None
    invalid_hereafter: int | None
    certificates: list[int]
    withdrawn: list[int]
    minted: int
    donation: int
    redeemers: list[Redeemer]
    metadata: list[tuple[int, bytes]]


def read_details(raw: bytes) -> Details:
    """Return what a transaction contains besides its outputs.

    Raises:
        BlockError: the bytes are not a transaction.
    """
    try:
        return _details(raw)
    except IndexError:
        raise BlockError("the transaction is cut off", len(raw)) from None
    except CborError as error:
        raise BlockError.of(error) from None


def _details(raw: bytes) -> Details:
    parts = _items(raw, 0)
    if len(parts) < 3:
        raise CborError(f"a transaction has {len(parts)} fields", 0)
    body_at, witnesses_at, *rest = parts
    body = {_number(raw, key): value for key, value in _entries(raw, body_at)}
    witnesses = {_number(raw, key): value for key, value in _entries(raw, witnesses_at)}
    auxiliary = [at for at in rest if raw[at] not in (_FALSE, _TRUE)]
    return Details(
        invalid_before=_number(raw, body[_BEGIN]) if _BEGIN in body else None,
        invalid_hereafter=_number(raw, body[_TTL]) if _TTL in body else None,
        certificates=[_kind(raw, at) for at in _items(raw, body.get(_CERTIFICATES))],
        withdrawn=[_number(raw, value) for _, value in _entries(raw, body.get(_WITHDRAWALS))],
        minted=sum(len(_entries(raw, names)) for _, names in _entries(raw, body.get(_MINT))),
        donation=_number(raw, body[_DONATION]) if _DONATION in body else 0,
        redeemers=_redeemers(raw, witnesses.get(_REDEEMERS)),
        metadata=_metadata(raw, auxiliary[0]) if auxiliary else [],
    )


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
