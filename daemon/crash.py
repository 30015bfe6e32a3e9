"""The record of a daemon that was killed by a signal, and whether a damaged store was the cause.

LMDB aborts the process on some damage, and a page that can't be read is SIGBUS: a restart would meet the same page
repeatedly. So Python's fault handler writes the stack to a file in the store's folder; the next start reads it.
"""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from storage.errors import Damaged
from storage.files import make_file

log = structlog.get_logger("daemon")

_FILE = "crash"
_FRAME = re.compile(r'File "([^"\n]*)", line (\d+) in ')
_ROOT = Path(__file__).resolve().parent.parent


def refuse_after_crash(folder: Path) -> None:
    """Refuse a store if a signal ended the last daemon while it was reading or writing it; log any other such end.

    Raises:
        Damaged: it was.
    """
    path = folder / _FILE
    try:
        text = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return
    if not text:
        return
    how = text.splitlines()[0].removeprefix("Fatal Python error: ")
    frames = [(Path(file), int(line)) for file, line in _FRAME.findall(text)]  # the innermost first
    if (place := _in_store(frames)) is not None:
        raise Damaged(
            f"{path}: the last daemon ended by {how!r} in {place}, so the store is damaged or its disk fails "
            "(if `utxod verify` finds nothing, remove this file)"
        )
    log.error("crash_found", how=how, where=f"{frames[0][0]}:{frames[0][1]}" if frames else None, file=str(path))


def _in_store(frames: list[tuple[Path, int]]) -> str | None:
    """Return where the store was used, if it was: the main thread does that while it opens it, other threads later.

    The rows of recovery are in files of their own, which the main thread uses while the daemon runs.
    """
    ours = [(path.relative_to(_ROOT), line) for path, line in frames if path.is_relative_to(_ROOT)]
    main_thread = any(path == Path("daemon/cli.py") for path, _ in ours)
    packages = {"storage"} if main_thread else {"storage", "handlers"}
    uses = (
        f"{path}:{line}"
        for path, line in ours
        if path.parts[0] in packages and not path.is_relative_to("storage/recovery")
    )
    return next(uses, None)


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Let a signal that ends this process leave a record in the store's folder. The caller holds the store's lock."""
    path = folder / _FILE
    make_file(path)
    with path.open("w") as file:
        faulthandler.enable(file, all_threads=False)
        try:
            yield
        finally:
            faulthandler.disable()
    path.unlink(missing_ok=True)
