"""Matches in Kupo's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from handlers.datums import search_datum
from handlers.matches import Row
from handlers.query import NoIndex, Snapshot
from handlers.rendering import data_hash, script_hash
from handlers.scripts import Script, read_reference
from handlers.spenders import Places, Spenders
from handlers.spends import NONE
from storage.history.layout import Extra, to_extra

LANGUAGES = ("native", "plutus:v1", "plutus:v2", "plutus:v3")
_ADDRESSES = 8192  # whose text is kept
_SHORT = 128  # bytes; there is no space for the few addresses that are longer
_BLOCKS = 8192


class Writer:
    """Writes matches of one chain; what outputs share is written once."""

    def __init__(self, text: Callable[[bytes], str]) -> None:
        self._text = lru_cache(_ADDRESSES)(text)
        self._long = text

    def address(self, raw: bytes) -> str:
        """Return an address as text."""
        return self._text(raw) if len(raw) <= _SHORT else self._long(raw)


class Creations:
    """Fields that the outputs of a block share; valid until a block is rolled back."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.places = Places()


class MatchWriter:
    """Writes the matches of one answer."""

    def __init__(self, shot: Snapshot, writer: Writer, creations: Creations, *, strings: bool, resolve: bool) -> None:
        self._shot, self._writer, self._creations = shot, writer, creations
        self._quote, self._resolve = '"' if strings else "", resolve
        self._spenders = Spenders(shot)
        self._datums: dict[bytes, bytes | None] = {}

    def texts(self, rows: list[Row]) -> Iterator[str]:
        """Yield each match as JSON.

        NOTE: the hot path of a large address: one template an output.
        """
        quote, creations, address, resolved = self._quote, self._creations, self._writer.address, ""
        if len(creations.texts) > _BLOCKS:
            creations.texts.clear()
        if self._resolve:
            resolved = ',"datum":null,"script":null'
        first, place, born = -1, 0, ""
        for row in rows:
            if row.first != first:  # else it is of the same transaction as the one before
                first, place = row.first, creations.places.of(self._shot, row.block, row.first)
                born = creations.texts.get(row.block) or self._born(row.block)
            spent = "null" if row.spender == NONE else self._spent(row)
            if row.extra:
                assets, more = self._more(to_extra(row.extra), row.value)
            else:
                assets, more = "", f'"datum_hash":null,"script_hash":null{resolved}'
            yield (
                f'{{"transaction_index":{place},"transaction_id":"{row.txid}","output_index":{row.output},'
                f'"address":"{address(row.address)}","value":{{"coins":{quote}{row.value}{quote},"assets":{{{assets}}}}},'
                f'{more},"created_at":{born},"spent_at":{spent}}}'
            )

    def _born(self, ordinal: int) -> str:
        text = self._creations.texts[ordinal] = self._point(ordinal)
        return text

    def _point(self, ordinal: int) -> str:
        block = self._shot.block(ordinal)
        return f'{{"slot_no":{block.slot},"header_hash":"{block.hash.hex()}"}}'

    def _spent(self, row: Row) -> str:
        by = self._spenders.of(row)
        assert by is not None
        point = self._point(by.block)[:-1]
        return f'{point},"transaction_id":"{by.txid}","input_index":{by.input},"redeemer":null}}'

    def _more(self, extra: Extra, value: int) -> tuple[str, str]:
        """Return the assets of an output, and its datum and script."""
        quote, body = self._quote, extra.body(b"", value)
        assets = ",".join(
            f'"{policy.hex()}{"." if name else ""}{name.hex()}":{quote}{quantity}{quote}'
            for policy, name, quantity in extra.assets
        )
        datum, script = data_hash(body), script_hash(body)
        kind = f'"datum_type":"{"inline" if extra.inline_datum is not None else "hash"}",' if datum is not None else ""
        more = f'"datum_hash":{_hex(datum)},{kind}"script_hash":{_hex(script)}'
        if self._resolve:
            found = None if extra.script_ref is None else read_reference(extra.script_ref)
            more += f',"datum":{_hex(self._datum(extra, datum))},"script":{script_json(found)}'
        return assets, more

    def _datum(self, extra: Extra, digest: bytes | None) -> bytes | None:
        if extra.inline_datum is not None or extra.datum is not None or digest is None:
            return extra.inline_datum if extra.inline_datum is not None else extra.datum
        if digest not in self._datums:
            try:
                self._datums[digest] = next((each for each in search_datum(self._shot, digest) if each), None)
            except NoIndex:  # then only what accompanies the output is known
                self._datums[digest] = None
        return self._datums[digest]


def script_json(script: Script | None) -> str:
    """Return a script as Kupo writes it."""
    if script is None or script.language >= len(LANGUAGES):
        return "null"
    return f'{{"language":"{LANGUAGES[script.language]}","script":"{script.code.hex()}"}}'


def _hex(raw: bytes | None) -> str:
    return "null" if raw is None else f'"{raw.hex()}"'
