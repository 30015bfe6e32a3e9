"""Process-level code: bus, socket, HTTP, logs, systemd, command line, and the wiring."""

import sys

if not {"rich", "structlog"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog.dev  # it would import rich for tracebacks with colors: a quarter of the time of most commands

    del sys.modules["rich"], structlog

VERSION = "0.1.0"
PROTOCOL = 1
