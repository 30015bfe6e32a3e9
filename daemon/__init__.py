"""Process-level code: bus, socket, HTTP, logs, systemd, command line, and the wiring."""

VERSION = "0.1.0"
PROTOCOL = 1
