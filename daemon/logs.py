"""Structured logs: one JSON object a line, or readable colours on a terminal; also for uncaught exceptions."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from config.settings import Log
from daemon.sink import redirect_stderr

log = structlog.get_logger("process")

_OF_LIBRARIES = {"uvicorn.error": "http_server", "py.warnings": "warning_issued"}
_FOR_ALL: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_json = False


def configure(config: Log) -> None:
    """Send every log line to standard error in the configured form; may be called again."""
    global _json
    terminal = sys.stderr is not None and sys.stderr.isatty()
    _json = config.format == "json" or (config.format == "auto" and not terminal)
    structlog.configure(
        processors=[*_FOR_ALL, *_renderers(terminal)],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, config.level.upper())),
        logger_factory=lambda *_: _Lines(),
        cache_logger_on_first_use=False,  # the level may change
    )
    if redirect_stderr(_notice):
        _catch_the_rest()


def is_json() -> bool:
    """Return whether lines are JSON objects."""
    return _json


def log_always(event: str, level: str, /, **fields: object) -> None:
    """Write a line whatever `log.level` is: it was requested, or it reports lines that are missing."""
    _Lines().msg(_rendered(event, level, fields))


def _rendered(event: str, level: str, fields: dict[str, object]) -> str:
    line: Any = {"event": event, **fields}
    for process in structlog.get_config()["processors"]:
        line = process(None, level, line)
    return str(line)


def _renderers(terminal: bool) -> Sequence[Processor]:
    if not _json:
        return [_tolerant(structlog.dev.ConsoleRenderer(colors=terminal))]
    return [structlog.processors.format_exc_info, _tolerant(structlog.processors.JSONRenderer(serializer=_to_json))]


def _to_json(line: object, default: Any) -> str:
    return msgspec.json.encode(line, enc_hook=default).decode()


def _tolerant(render: Processor) -> Processor:
    """Write a line whatever it contains: logging must not fail the caller."""

    def rendered(logger: Any, level: str, line: EventDict) -> Any:
        try:
            return render(logger, level, line)
        except Exception:  # noqa: BLE001  # a name that is not UTF-8, a list that contains itself, a `repr` that raises
            return render(logger, level, {str(name): _plain(value) for name, value in line.items()})

    return rendered


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001
        text = object.__repr__(value)
    return text.encode(errors="backslashreplace").decode()


def _notice(lines: int, since: float) -> str:
    began = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
    return _rendered("log_lines_dropped", "warning", {"lines": lines, "since": began})


class _Lines:
    """Where structlog writes a rendered line: whatever standard error is at the moment."""

    def msg(self, line: str) -> None:
        """Write one line."""
        sys.stderr.write(line + "\n")

    debug = info = warning = error = critical = msg


# --- uncaught exceptions ---------------------------------------------------------------------------------------------


def _catch_the_rest() -> None:
    """Log everything that Python itself would print on standard error."""
    logging.basicConfig(handlers=[_FromLibraries()])
    logging.captureWarnings(True)
    sys.excepthook = _failed
    sys.unraisablehook = _ignored
    threading.excepthook = _thread_failed


class _FromLibraries(logging.Handler):
    """Records of libraries, with asyncio's exceptions that were never retrieved, and warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as a structured line."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the format
            message = str(record.msg)
        exception = record.exc_info[1] if record.exc_info else None
        if _woken_twice(record, exception):
            log.debug("late_wakeup_ignored", message=message)
            return
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(_OF_LIBRARIES.get(record.name, "library_logged"), logger=record.name, message=message, exc_info=exception)


def _woken_twice(record: logging.LogRecord, exception: BaseException | None) -> bool:
    """Return whether a socket became ready in the moment in which it was closed: anyio's waiting future is done then.

    uvloop calls the future's `set_result` once more, as a callback, and no task waits for its result.
    """
    late = record.name == "asyncio" and isinstance(exception, asyncio.InvalidStateError)
    return late and record.getMessage().startswith(
        "Exception in callback <built-in method set_result of _asyncio.Future"
    )


def _failed(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    log.critical("process_failed", error=_named(error), exc_info=error)


def _thread_failed(thrown: threading.ExceptHookArgs) -> None:
    name = None if thrown.thread is None else thrown.thread.name
    if thrown.exc_type is not SystemExit:  # which only ends the thread
        log.error("thread_failed", thread=name, error=_named(thrown.exc_value), exc_info=thrown.exc_value)


def _ignored(thrown: sys.UnraisableHookArgs) -> None:
    where = thrown.err_msg or "Exception ignored in"
    log.error("exception_ignored", where=f"{where} {_plain(thrown.object)}", exc_info=thrown.exc_value)


def _named(error: BaseException | None) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
