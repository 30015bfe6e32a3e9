"""The manifest of a backup: its content, its time, and the digest of each file."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from storage.blobname import NAME
from storage.errors import Damaged, WrongFormat
from storage.history.layout import FORMAT

MANIFEST, STORE, RECOVERY, BLOBS = "manifest.json", "lmdb/data.mdb", "recovery.db", "blobs"
VERSION = 1

_BLOB = re.compile(rf"{BLOBS}/([0-9a-f]{{2}})/({NAME.pattern})")


class BackupDamaged(Damaged):
    """A backup is not as it was written."""

    advice = "nothing was restored: use another backup"


class File(Struct, frozen=True):
    """A file of the backup."""

    name: str
    size: int
    sha256: str


class Tip(Struct, frozen=True):
    """The latest block of the backup."""

    height: int
    slot: int
    hash: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What a backup has. `not_included` are sentences about what belongs to the store and is not in the backup."""

    utxod_backup: int
    version: str
    created_at: str
    format: int
    chain: str
    kind: str
    indexes: Sequence[str]
    tip: Tip | None
    unspent: int
    blob_store: str
    recovery_store: str
    not_included: Sequence[str]
    files: Sequence[File]


def read_manifest(raw: bytes, source: str) -> Manifest:
    """Return the manifest of a backup.

    Raises:
        BackupDamaged: it can't be read.
        WrongFormat: another version wrote it.
    """
    try:
        version = msgspec.json.decode(raw, type=dict[str, object]).get("utxod_backup")
        if version != VERSION:
            raise WrongFormat(f"{source}: {MANIFEST} has version {version}, this version of utxod reads {VERSION}")
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupDamaged(f"{source}: {MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise WrongFormat(
            f"{source}: a backup of a store of format {manifest.format}, this version of utxod reads format {FORMAT}: "
            f"restore it with utxod {manifest.version}"
        )
    names = [file.name for file in manifest.files]
    if STORE not in names or len(set(names)) < len(names) or not all(map(is_known, names)):
        raise BackupDamaged(f"{source}: the files that {MANIFEST} names are not those of a backup")
    return manifest


def is_known(name: str) -> bool:
    """Return whether a backup has such a file; nothing else is ever written by a restore."""
    blob = _BLOB.fullmatch(name)
    return name in (STORE, RECOVERY) or (blob is not None and blob[2].startswith(blob[1]))
