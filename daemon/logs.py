"""Structured logs: one JSON object a line, or readable colours on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog

from config.settings import Log


def configure(config: Log) -> None:
    """Send every log line to standard error in the configured form."""
    readable = config.format == "text" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer(serializer=_to_json)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, config.level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _to_json(line: object, default: Any) -> str:
    return msgspec.json.encode(line, enc_hook=default).decode()
