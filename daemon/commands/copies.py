"""`utxod backup`, `restore`, `compact` and `migrate`: commands on all files of a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from config.settings import Config
from config.units import parse_size
from daemon.commands.common import WRONG_USE, Exit, config_option, pipe_may_close, store_errors
from daemon.commands.progress import Progress, in_bytes
from feeds.shard_name import ShardName
from formats.shards import Shard
from storage.blobs import Files, open_blobs
from storage.manifest import Manifest

_STDOUT = 1


class _Size(click.ParamType[int]):
    """Bytes as the configuration writes them."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@config_option
@click.argument("target", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--max-growth",
    type=_Size(),
    default="1GiB",
    show_default=True,
    help="Maximum growth of the store during the backup, which ends with an error beyond it; 0 means no limit.",
)
@click.pass_context
def backup(context: click.Context, target: Path, max_growth: int) -> None:
    """Copy the store, recovery tables and blobs, as of one moment, to the folder TARGET. The daemon may run.

    The command creates TARGET. The folder has this name only when the backup is complete and on disk. With - one tar
    archive is written to standard output. `utxod restore` compares the files with the digests in the manifest and
    restores them. While the store is copied, freed pages cannot be reused, so the file grows by what blocks write.
    """
    from daemon.backup import backup as write

    config: Config = context.obj.config
    stream = str(target) == "-"
    if stream and sys.stdout.isatty():
        raise Exit("standard output is a terminal: name a folder, or redirect it into a file", WRONG_USE)
    context.obj.continue_in_child()
    with store_errors(), pipe_may_close(), Progress("backup", _size(config)) as progress:
        manifest = write(config, _STDOUT if stream else target, max_growth, progress.advance)
    click.echo(f"{_summary(manifest)}{'' if stream else f' in {target}'}", err=stream)
    for sentence in manifest.not_included:
        click.echo(f"not included: {sentence}", err=True)


def _size(config: Config) -> int:
    """Return about how many bytes a backup has."""
    from daemon.store import folder

    paths = [folder(config) / "data.mdb", config.data_dir / "recovery.db"]
    if config.transactions.enabled and config.transactions.blob_store.startswith("file:"):
        blobs = open_blobs(config.transactions.blob_store, config.data_dir, make=False)
        paths += blobs.paths() if isinstance(blobs, Files) and blobs.root.is_dir() else []
    return sum(path.stat().st_size for path in paths if path.exists())


def _summary(manifest: Manifest) -> str:
    tip = "an empty store" if manifest.tip is None else f"height {manifest.tip.height:,}, block {manifest.tip.hash}"
    size = sum(file.size for file in manifest.files)
    return f"backup of {manifest.chain} at {tip}: {len(manifest.files):,} files, {in_bytes(size)}"


@click.command()
@click.argument("source", required=False, type=click.Path(path_type=Path, exists=True, allow_dash=True))
@click.argument("data_dir", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--verify", "walk", is_flag=True, help="Also check every table, as `utxod verify --quick` does.")
@click.option(
    "--adopt",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Check a data folder whose files were copied while its store was open, and accept it. Takes neither arguments "
    "nor --verify.",
)
@click.option(
    "--shard",
    type=ShardName(),
    help="Keep only the outputs of this shard, such as 11/16: a part of the shard of the backup, such as 3/8.",
)
@click.pass_context
def restore(
    context: click.Context,
    source: Path | None,
    data_dir: Path | None,
    walk: bool,
    adopt: Path | None,
    shard: Shard | None,
) -> None:
    """Restore the backup SOURCE into DATA_DIR, a new or empty folder.

    SOURCE is a folder or a tar archive that `utxod backup` has written; - is an archive on standard input. Every file
    is compared with its digest in the manifest before the store is moved to its place. Exits 3 if the backup is
    damaged, incomplete or of another format, and names the file. Exits 2 if DATA_DIR is not empty.
    """
    from daemon.store import TABLES
    from storage.restore import NotEmpty
    from storage.restore import adopt as accept
    from storage.restore import restore as read

    if adopt is not None and (source is not None or walk or shard is not None):
        raise click.UsageError("--adopt DIR excludes other arguments")
    if adopt is None and (source is None or data_dir is None):
        raise click.UsageError("name SOURCE and DATA_DIR, or --adopt DIR")
    context.obj.continue_in_child()
    with store_errors():
        if adopt is not None:
            accept(adopt, TABLES)
            click.echo(f"{adopt}: sound, and accepted")
            return
        assert source is not None and data_dir is not None
        given = sys.stdin.buffer if str(source) == "-" else source
        try:
            with Progress("restore", _size_of(source)) as progress:
                manifest = read(given, data_dir, TABLES, walk=walk, advance=progress.advance, shard=shard)
        except NotEmpty as error:
            raise Exit(str(error), WRONG_USE) from error
    kept = "" if shard is None else f"shard {shard} of "
    click.echo(f"restored {kept}the {_summary(manifest)} to {data_dir}")
    if manifest.blob_store.startswith("file:") and manifest.blob_store != "file:blobs":
        click.echo(f'blobs are in {data_dir / "blobs"}; the backup was made with blob_store = "{manifest.blob_store}"')
    for sentence in manifest.not_included:
        click.echo(f"not included: {sentence}", err=True)


def _size_of(source: Path) -> int | None:
    if source.is_dir():
        return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    return source.stat().st_size if source.is_file() else None


@click.command()
@config_option
@click.pass_context
def compact(context: click.Context) -> None:
    """Rewrite the store without its free pages. The daemon must not run, and no process may read the store.

    The command needs disk space for both files. If it is killed, either the old or the new store remains.
    """
    from daemon.store import folder, open_disk, open_store
    from storage.compact import compact as rewrite

    config: Config = context.obj.config
    context.obj.continue_in_child()
    with store_errors():
        with open_disk(config, readonly=True) as disk:
            open_store(disk, config)
            used = disk.used()
        with Progress("compact", used) as progress:
            before, after = rewrite(folder(config), progress.advance)
    click.echo(f"{in_bytes(before)} before, {in_bytes(after)} now")


@click.command()
@config_option
@click.pass_context
def migrate(context: click.Context) -> None:
    """Bring a store of an older format to the format of this version, while no daemon runs.

    Exits 3 if there is no migration from its format. Make a backup with the version that wrote it first.
    """
    from daemon.store import folder
    from storage.migrate import migrate as run_steps

    config: Config = context.obj.config
    context.obj.continue_in_child()
    with store_errors():
        formats = run_steps(folder(config))
    if len(formats) > 1:
        click.echo(f"migrated from format {formats[0]} to format {formats[-1]}")
    else:
        click.echo(f"the store has format {formats[0]} already: nothing to do")
