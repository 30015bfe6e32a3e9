"""`utxod bench sizes`: the bytes that a store needs for each output, transaction, block and index entry."""

from __future__ import annotations

from pathlib import Path

import click
import lmdb
import msgspec

from daemon.commands.common import FAILED, Exit
from storage.disk import META, Db, Txn
from storage.history.layout import RUN, TABLES, stored_state
from storage.history.runs import KEY, manifest

_MOST_TABLES = 64
_RUNS = b"runs:"


class Size(msgspec.Struct, frozen=True):
    """The size of a table, in whole pages, or of the values of one index, which are in the table `history_run`."""

    name: str
    entries: int
    bytes: int


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of a store."""

    file_bytes: int  # free pages included
    outputs: int  # all that were ever created, as they are numbered
    unspent: int
    transactions: int  # entries of the index of transaction ids: those with an output that is kept
    tables: list[Size]
    indexes: list[Size]


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def sizes(store: Path, as_json: bool) -> None:
    """Print the sizes of the tables and indexes of STORE, the folder of a data.mdb. The daemon may run.

    docs/sizing.md extrapolates from such figures.
    """
    found = measure(store)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    click.echo(f"{found.file_bytes:,} bytes; {found.outputs:,} outputs, {found.unspent:,} of them unspent")
    click.echo(f"{'':24}{'entries':>14}{'bytes':>16}{'each':>10}{'an output':>12}{'an unspent':>12}")
    for size in (*found.tables, *found.indexes):
        each, output, unspent = (size.bytes / max(1, by) for by in (size.entries, found.outputs, found.unspent))
        click.echo(f"{size.name:24}{size.entries:>14,}{size.bytes:>16,}{each:>10.1f}{output:>12.2f}{unspent:>12.2f}")


def measure(store: Path) -> Sizes:
    """Return the sizes of a store at its last commit.

    Raises:
        Exit: there is none, or it has another format.
    """
    try:
        with lmdb.open(str(store), readonly=True, create=False, max_dbs=_MOST_TABLES) as env, env.begin() as txn:
            names = [bytes(name).decode() for name, _ in txn.cursor()]
            tables = {name: env.open_db(name.encode(), txn=txn, create=False) for name in names}
            if missing := {META, *TABLES} - set(names):
                raise Exit(f"{store}: this is not a store of utxod: {', '.join(sorted(missing))} is missing", FAILED)
            file_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
            return _measure(txn, tables, file_bytes)
    except lmdb.Error as error:
        raise Exit(f"{store}: {error}", FAILED) from error


def _measure(txn: Txn, tables: dict[str, Db], file_bytes: int) -> Sizes:
    state = stored_state(txn, tables[META])
    indexes = {size.name: size for size in _indexes(txn, tables)}
    return Sizes(
        file_bytes=file_bytes,
        outputs=state.next_number,
        unspent=state.unspent,
        transactions=indexes["index txid"].entries if "index txid" in indexes else 0,
        tables=[size for name, db in tables.items() if (size := _table(txn, name, db)).entries],
        indexes=[*indexes.values()],
    )


def _table(txn: Txn, name: str, db: Db) -> Size:
    stat = txn.stat(db)
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return Size(name, stat["entries"], pages * stat["psize"])


def _indexes(txn: Txn, tables: dict[str, Db]) -> list[Size]:
    lengths = dict[int, int]()
    for key, value in txn.cursor(db=tables[RUN]):
        run, *_ = KEY.unpack(key)
        lengths[run] = lengths.get(run, 0) + len(value)
    found = []
    for key, _ in txn.cursor(db=tables[META]):
        name = bytes(key)
        if name.startswith(_RUNS):
            kind = name.removeprefix(_RUNS).decode()
            runs = manifest(txn, tables[META], kind).runs
            entries, size = sum(run.entries for run in runs), sum(lengths.get(run.id, 0) for run in runs)
            found.append(Size(f"index {kind}", entries, size))
    return found
